"""The model card: what was trained, on what, by which command, and how much of its drafts is accepted."""

from __future__ import annotations

import json
from dataclasses import dataclass

from deploy.train.acceptance import Acceptance


@dataclass(frozen=True, slots=True)
class ModelCard:
    """All that the card says."""

    method: str
    target: str
    target_digest: str
    license: str
    data: str
    """Sentences on what it learnt from."""
    vocabulary: str
    """A sentence on the tokens it drafts."""
    held_out_answers: int
    acceptance: Acceptance
    """On held-out prompts, with the published weights."""

    def render(self, command: str, size_bytes: int) -> str:
        """Markdown with the front matter that model hubs read."""
        serving = {"method": self.method, "model": "THIS FOLDER", "num_speculative_tokens": self._draft_tokens}
        return "\n".join(
            (
                "---",
                f"base_model: {json.dumps(self.target)}",
                f"license: {json.dumps(self.license)}",
                "tags: [speculative-decoding]",
                "---",
                "",
                f"# {self.method} for {self.target}",
                "",
                f"Drafts tokens for {self.target} (weights {self.target_digest}); useless with any other model.",
                f"Size {size_bytes / 1e6:.1f} MB. {self.vocabulary}",
                "",
                "## Use",
                "",
                "In a path of `fleet.yaml`:",
                "",
                "```yaml",
                f"speculative: {json.dumps(serving)}",
                "```",
                "",
                "## Training",
                "",
                f"{self.data} `metrics.jsonl` has every step, `training.png` shows them.",
                "",
                "```sh",
                command,
                "```",
                "",
                "## Acceptance on prompts it was not trained on",
                "",
                *self._acceptance(),
                "",
            )
        )

    @property
    def _draft_tokens(self) -> int:
        return min(4, len(self.acceptance.by_position))

    def _acceptance(self) -> list[str]:
        found = self.acceptance
        if found.rounds == 0:
            return ["Not measured: there were no held-out prompts with answers long enough."]
        rows = [f"| {place} | {share:.3f} |" for place, share in enumerate(found.by_position, start=1)]
        return [
            f"Greedy, a chain of {len(found.by_position)} drafts a round, {found.rounds} rounds over "
            f"{self.held_out_answers} answers. Mean accepted length {found.mean_length:.2f} tokens a round, the "
            "target's own included.",
            "",
            "| drafted position | rounds that accept it |",
            "|---|---|",
            *rows,
        ]
