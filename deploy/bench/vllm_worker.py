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
LONGEST = 1024
"""Tokens of prompt and answer."""


def serve(folder: str, architecture: str, dtype: str, max_num_seqs: int) -> None:
    """Load the model, say so, then time one batch of greedy answers of exactly so many tokens for each line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries and their processes print must not get between the answers
    from vllm import LLM, SamplingParams

    model = LLM(
        folder,
        dtype=dtype,
        max_num_seqs=max_num_seqs,
        max_model_len=LONGEST,
        hf_overrides={"architectures": [architecture]},
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
    os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")  # it keeps one core for a server that is not there
    # Left to itself it takes one of two cores that share a physical one; it gets as many as the other arms.
    cores = sorted(os.sched_getaffinity(0))[: int(sys.argv[5])]
    is_range = cores[-1] - cores[0] == len(cores) - 1
    listed = f"{cores[0]}-{cores[-1]}" if is_range else ",".join(str(core) for core in cores)
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", listed)
    serve(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
