"""Which turns of a rollout are told to people who are not watching?"""

from __future__ import annotations

from enum import StrEnum


class NoticeKind(StrEnum):
    """What a webhook can ask for."""

    STEP = "step"
    """A step's weight comes into force, or comes back after a hold."""
    HOLD = "hold"
    """The rollout waits: no data, too few ready replicas, another split than was set, or a failure in manual mode."""
    PROMOTION = "promotion"
    ROLLBACK = "rollback"
    ABORT = "abort"
    """An operator took the canary out, or its path left the config."""
