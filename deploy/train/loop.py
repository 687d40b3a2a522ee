"""The training itself: step by step through a fixed plan, resumed exactly where it was interrupted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deploy.train.batches import Batch
from deploy.train.checkpoint import CheckpointFile
from deploy.train.metrics_log import Line, MetricsLog
from deploy.train.settings import TrainSettings
from deploy.train.trainee import Trainee

BETAS = (0.9, 0.95)
SIGNIFICANT_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Plan:
    """All steps, each by the examples that it learns, and how a batch is made of them."""

    steps: Sequence[tuple[int, ...]]
    load: Callable[[tuple[int, ...]], Batch]


def learning_rate(step: int, steps: int, settings: TrainSettings) -> float:
    """Linear warm-up to the peak, then a cosine that reaches 0 after the last of `steps` (arXiv:1608.03983, eq. 5)."""
    rising = math.ceil(settings.warmup * steps)
    if step < rising:
        return settings.learning_rate * (step + 1) / rising
    progress = (step - rising) / max(1, steps - rising)
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))


class Trainer:
    """AdamW on the trainee's parameters, which share their memory with `tensors`."""

    def __init__(
        self,
        trainee: Trainee,
        tensors: Mapping[str, Tensor],
        plan: Plan,
        settings: TrainSettings,
        checkpoint: CheckpointFile,
    ) -> None:
        self._trainee = trainee
        self._tensors = tensors
        self._plan = plan
        self._settings = settings
        self._checkpoint = checkpoint
        parameters = list(trainee.parameters())
        self._parameters = parameters
        groups = [
            {"params": [own for own in parameters if own.ndim > 1], "weight_decay": settings.weight_decay},
            {"params": [own for own in parameters if own.ndim <= 1], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW([group for group in groups if group["params"]], betas=BETAS)

    def run(self, log: MetricsLog, measured: Callable[[], Line], progress: Callable[[int, Line], None]) -> None:
        """All steps that are not done yet; `progress` gets how many are done now and the latest line of the log."""
        settings, steps = self._settings, len(self._plan.steps)
        done = self._checkpoint.restore(self._tensors, self._optimizer)
        log.keep_until(done)
        if done:
            progress(done, {"step": done})
        for step in range(done, steps):
            self._note(log, self._learn(step), progress)
            is_last = step + 1 == steps
            if is_last or (step + 1) % settings.evaluate_every == 0:
                self._note(log, {"step": step + 1} | measured(), progress)
            if is_last or (step + 1) % settings.checkpoint_every == 0:
                self._checkpoint.save(step + 1, self._tensors, self._optimizer)

    def _note(self, log: MetricsLog, line: Line, progress: Callable[[int, Line], None]) -> None:
        log.write(line)
        progress(line["step"], line)

    def _learn(self, step: int) -> Line:
        """One step; its line of the log."""
        rate = learning_rate(step, len(self._plan.steps), self._settings)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        noise = torch.Generator().manual_seed((self._settings.seed << 31) + step)
        losses = self._trainee.losses(self._plan.load(self._plan.steps[step]), noise)
        self._optimizer.zero_grad()
        torch.autograd.backward(losses.total)
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._settings.clip)
        self._optimizer.step()
        numbers = {"loss": losses.total, **losses.parts, "gradient_norm": norm}
        return {"step": step + 1, "learning_rate": rate} | {name: _rounded(value) for name, value in numbers.items()}


def _rounded(value: Tensor) -> float:
    return float(f"{value.item():.{SIGNIFICANT_DIGITS}g}")
