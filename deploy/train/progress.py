"""How far is a training, and how good? The loop's log lines as a bar, a note beside it and lines of measurements."""

from __future__ import annotations

from deploy.train.acceptance import Acceptance
from deploy.train.metrics_log import Line
from deploy.train.screen import Advance, Screen

ACCEPTANCE = "held_out_acceptance"


def measured_line(acceptance: Acceptance) -> Line:
    """A measurement as the log has it."""
    if acceptance.rounds == 0:
        return {"held_out_rounds": 0}
    return {
        "held_out_rounds": acceptance.rounds,
        ACCEPTANCE: [round(share, 4) for share in acceptance.by_position],
        "held_out_mean_length": round(acceptance.mean_length, 4),
    }


def accepted(line: Line) -> str:
    """A measurement in words."""
    if ACCEPTANCE not in line:
        return "nothing to measure on"
    shares = " ".join(f"{share:.2f}" for share in line[ACCEPTANCE])
    return f"accepted by position {shares}, {line['held_out_mean_length']:.2f} tokens a round"


class TrainingProgress:
    """Called with the steps that are done and the latest line of the log."""

    def __init__(self, screen: Screen, advance: Advance) -> None:
        self._screen = screen
        self._advance = advance
        self._done = 0
        self._loss = ""

    def __call__(self, done: int, line: Line) -> None:
        if "loss" in line:
            self._loss = f"loss {line['loss']:.3f}"
        elif "held_out_rounds" in line:
            self._screen.say(f"step {done}: {self._loss}, held out {accepted(line)}")
        elif done:
            self._screen.say(f"going on after step {done}")
        self._advance(done - self._done, self._loss)
        self._done = done
