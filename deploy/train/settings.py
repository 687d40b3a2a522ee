"""Every knob of `fleet train`, with its bounds; the command line is made from these fields."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from fleet.config import DEFAULT_MODEL, Section

Temperature = Annotated[float, Field(ge=0, le=2)]


class TrainSettings(Section):
    """What every kind of proposer is trained with."""

    out: Path = Field(description="Folder for the trained files, figures and checkpoint; the same again resumes.")
    target: str = Field(DEFAULT_MODEL, min_length=1, description="Hub id, local folder or GGUF file of the target.")
    dtype: Literal["bfloat16", "float32"] = Field("bfloat16", description="Number format that the target answers in.")

    prompts: tuple[Path, ...] = Field((), description="JSON lines with prompt, messages or turns, or text; repeatable.")
    held_out_prompts: tuple[Path, ...] = Field((), description="Such files that are only measured on; repeatable.")
    generate: int = Field(0, ge=0, description="User turns to let the target make up from its chat template.")
    corpus: Path | None = Field(None, description="Folder of the target's answers; default: in the cache, by target.")
    held_out: float = Field(0.05, ge=0, le=0.5, description="Share of the prompts that is only measured on.")
    max_prompt_tokens: int = Field(1024, ge=1, description="Longer prompts are left out.")
    answer_tokens: int = Field(256, ge=8, description="Longest answer.")
    temperatures: tuple[Temperature, ...] = Field(
        (0.0, 0.8),
        min_length=1,
        description="Of the learnt answers, by turns; repeatable. Held out: greedy.",
    )
    answer_batch: int = Field(32, ge=1, le=1024, description="Prompts that are answered at once.")

    epochs: int = Field(2, ge=1, description="Passes over the answers.")
    batch_tokens: int = Field(2048, ge=16, description="Tokens of one training step, prompts included.")
    learning_rate: float = Field(1e-3, gt=0, le=1, description="Peak; warm-up, then a cosine down to 0.")
    warmup: float = Field(0.04, ge=0, le=1, description="Share of the steps until the peak.")
    weight_decay: float = Field(0.01, ge=0, le=1, description="AdamW's.")
    clip: float = Field(1.0, gt=0, description="Largest norm of the gradient.")
    seed: int = Field(0, ge=0, lt=2**31)

    evaluate_every: int = Field(100, ge=1, description="Steps between two measurements.")
    checkpoint_every: int = Field(25, ge=1, description="Steps between two checkpoints: what a kill can cost.")
    evaluate_answers: int = Field(16, ge=1, description="Held-out answers in between; at the end it is all of them.")
    cache_gib: float = Field(4.0, ge=0, description="Disk for the target's hidden states; the rest is recomputed.")
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = Field(None, ge=1, le=512, description="CPU threads; default: torch's choice.")
    license: str = Field("other", min_length=1, description="For the model card; that of the target usually binds.")
    dry_run: bool = Field(False, description="Print sizes and the estimated time, and stop.")


class ChainSettings(TrainSettings):
    """What drafts one token after the other, as many as asked for."""

    depth: int = Field(5, ge=1, le=16, description="Drafted positions that acceptance is measured at.")


class DraftSettings(ChainSettings):
    """A small decoder of the target's family between the target's own embedding and head."""

    layers: int = Field(2, ge=1, description="Decoder layers, started as copies of layers of the target.")
    intermediate: int | None = Field(None, ge=8, description="Width of the MLPs; default: the target's.")
    draft_vocab: int = Field(8192, ge=16, description="Most frequent tokens that can be drafted.")


class HeadSettings(ChainSettings):
    """One decoder layer on the target's hidden states."""

    intermediate: int | None = Field(None, ge=8, description="Width of the MLP; default: the target's.")
    context: int = Field(2048, ge=64, description="Tokens, prompt included, up to which it drafts.")
    draft_vocab: int = Field(8192, ge=16, description="Most frequent tokens that can be drafted.")


class EagleSettings(HeadSettings):
    """An EAGLE-1 head, arXiv:2401.15077."""

    noise: float = Field(0.1, ge=0, description="Uniform noise on the features, ± so much of their root mean square.")
    token_weight: float = Field(0.1, ge=0, description="Weight of the tokens' loss beside that of the features.")


class Eagle3Settings(HeadSettings):
    """An EAGLE-3 head, arXiv:2503.01840."""

    unroll: int = Field(4, ge=1, le=16, description="Steps of the training-time test.")
    decay: float = Field(0.8, gt=0, le=1, description="Weight of each further step.")


class MedusaSettings(TrainSettings):
    """Medusa-1 heads, arXiv:2401.10774: the target stays as it is."""

    heads: int = Field(4, ge=1, le=10, description="Tokens ahead, beyond the target's own next one.")
    decay: float = Field(0.8, gt=0, le=1, description="λ: head k weighs λ^k.")
    draft_vocab: int | None = Field(
        None, ge=16, description="Most frequent tokens that can be drafted, in vLLM's layout; default: all, Medusa-1's."
    )
    shared_head: bool = Field(False, description="One output layer for all heads, in vLLM's layout.")
