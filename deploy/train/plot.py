"""How did a training go, at a glance? Loss and held-out acceptance over the steps, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from deploy.train.metrics_log import Line
from deploy.train.progress import ACCEPTANCE


def plot(lines: Sequence[Line], title: str, file: Path) -> None:
    """Write a PNG; `lines` are those of the metrics log."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    figure.suptitle(title)
    losses, acceptance = figure.subplots(1, 2)
    learnt = [line for line in lines if "loss" in line]
    losses.plot([line["step"] for line in learnt], [line["loss"] for line in learnt], linewidth=0.8)
    losses.set(xlabel="step", ylabel="training loss", yscale="log")
    measured = [line for line in lines if ACCEPTANCE in line]
    steps = [line["step"] for line in measured]
    for position in range(len(measured[0][ACCEPTANCE]) if measured else 0):
        values = [line[ACCEPTANCE][position] for line in measured]
        acceptance.plot(steps, values, marker=".", label=f"position {position + 1}")
    acceptance.set(xlabel="step", ylabel="held-out rounds that accept it", ylim=(0, 1))
    if measured:
        acceptance.legend(loc="upper left")
    figure.savefig(file, dpi=120)
