"""When is a proposer that does not pay tried again? Seldom enough to cost little, long enough to tell."""

from __future__ import annotations

from dataclasses import dataclass, field

PROBE_EVERY_STEPS = 64
"""Steps without a draft between two probes, at the least."""
PROBE_ROUNDS = 2
"""A probe's first round also catches up on what was not drafted for; the second one tells what a round costs."""
PROBE_SHARE = 0.01
"""Of the time of the steps without a draft: what probes may cost."""


@dataclass(slots=True)
class Probes:
    """Steps without a draft save up a share of their time, and a probe begins once that pays for it.

    A probe that cost more than was thought leaves a debt, so that over time all of them together keep to the share.
    """

    is_probing: bool = field(default=False, init=False)
    """Whether the step that was asked about last belongs to a probe."""
    _quiet_steps: int = field(default=0, init=False)
    _rounds_left: int = field(default=0, init=False)
    _steps_left: int = field(default=0, init=False)
    """Those that the probe under way may still take: rounds count only when something was owed, and a draft that has
    lost the sequences first reads their prompts."""
    _saved_seconds: float = field(default=0.0, init=False)

    def try_now(self, step_seconds: float, round_seconds: float) -> bool:
        """Whether to probe in a step that would draft nothing otherwise.

        `step_seconds` is what it takes without a draft, and `round_seconds` what a round of a probe takes beyond that.
        """
        self.is_probing = self._goes_on() or self._begins(step_seconds, PROBE_ROUNDS * round_seconds)
        return self.is_probing

    def stop(self) -> None:
        """Drafting pays: there is nothing to probe."""
        self.is_probing = False
        self._quiet_steps = self._rounds_left = 0

    def spend(self, seconds: float) -> None:
        """The probe under way took so much longer than a step without a draft."""
        self._saved_seconds -= seconds

    def count_round(self) -> None:
        """A round of the probe under way showed what it costs."""
        self._rounds_left = max(0, self._rounds_left - 1)

    def _goes_on(self) -> bool:
        if not self._rounds_left or not self._steps_left:
            return False
        self._steps_left -= 1
        return True

    def _begins(self, step_seconds: float, price: float) -> bool:
        self._quiet_steps += 1
        # Long savings would pay for one probe after the other where the price has risen since.
        self._saved_seconds = min(price, self._saved_seconds + PROBE_SHARE * step_seconds)
        if self._quiet_steps < PROBE_EVERY_STEPS or self._saved_seconds < price:
            return False
        self._quiet_steps, self._rounds_left, self._steps_left = 0, PROBE_ROUNDS, PROBE_EVERY_STEPS - 1
        return True
