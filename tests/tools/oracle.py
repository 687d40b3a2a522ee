"""What the tiny model really says: `transformers` on the same folder, token by token, without any engine of ours."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from fleet.tokenizer import Tokenizer


@dataclass(frozen=True)
class Likelihood:
    """Of a continuation, given what precedes it: the sum of its tokens' log-probabilities, natural logarithm."""

    logprob: float
    is_greedy: bool


class Oracle:
    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.load(folder)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def likelihood(self, context: str, continuation: str) -> Likelihood:
        """As lm-eval cuts it: both are tokenized as one text, and the context's own length is where it ends."""
        tokens, start = self.encode(context + continuation), len(self.encode(context))
        logprobs = torch.log_softmax(self._logits(tokens), dim=-1)
        wanted = [(float(logprobs[i - 1, tokens[i]]), int(logprobs[i - 1].argmax())) for i in range(start, len(tokens))]
        return Likelihood(
            logprob=sum(logprob for logprob, _ in wanted),
            is_greedy=[best for _, best in wanted] == tokens[start:],
        )

    def greedy(self, prompt: list[int], tokens: int) -> str:
        """The text of the likeliest tokens, to the end of sequence at the latest."""
        said: list[int] = []
        while len(said) < tokens and not self.tokenizer.eos_token_ids & set(said):
            said.append(int(self._logits([*prompt, *said])[-1].argmax()))
        return self.tokenizer.decode(said)

    @torch.inference_mode()
    def _logits(self, tokens: list[int]) -> torch.Tensor:
        """One row per token, without the padding that the model's output has beyond the vocabulary."""
        logits: torch.Tensor = self._model(torch.tensor([tokens])).logits[0, :, : self.tokenizer.vocab_size]
        return logits
