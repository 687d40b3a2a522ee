"""How fast is vLLM on this machine? Runs under the interpreter of an environment of its own, driven by engine_speed.

One JSON object a line: in `{"prompts": [[int, ...], ...], "tokens": int}`, out `{"seconds": float}`. It imports
nothing of this project, since that environment does not have it.
"""

from __future__ import annotations

import json
import os
import sys
import time

READY = "ready"


def serve(folder: str, dtype: str, max_num_seqs: int, max_model_len: int) -> None:
    """Load the model, say so, then time one batch of greedy answers of exactly so many tokens for each line."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print must not get between the answers
    from vllm import LLM, SamplingParams

    model = LLM(
        folder,
        dtype=dtype,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        enable_prefix_caching=False,
        disable_log_stats=True,
    )
    print(READY, file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        sampling = SamplingParams(temperature=0.0, max_tokens=asked["tokens"], ignore_eos=True, detokenize=False)
        prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
        began = time.perf_counter()
        model.generate(prompts, sampling, use_tqdm=False)
        print(json.dumps({"seconds": time.perf_counter() - began}), file=answers, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
