"""How does the table of transitions look as a diagram? The text of docs/rollout_states.md."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from canary.events import Ticked
from canary.rollout import TRANSITIONS
from canary.rollout_state import State

DOCUMENT = Path(__file__).parent.parent / "docs" / "rollout_states.md"
_HEAD = """\
# Rollout states

Generated from `TRANSITIONS` in `canary/rollout.py` by `make docs`; do not edit.
An event that a state does not list is refused (`InvalidTransition`) and changes nothing.
Events that can only leave a state as it is are listed in the table, not drawn.

"""
_PROVED = """
## What is proved

`tests/canary/test_rollout_model.py` walks through every situation that a rollout can get into, on the code that runs,
with a judge that may answer anything after any window. In each of them:

- an end can be reached by facts alone; promotion too, unless it is an operator's turn (paused, rolled back, aborted,
  frozen by `realised_split`, or `mode: manual`);
- the weight is within its bounds and never above what the ready replicas may get; rolled back and aborted mean 0;
- a failed attempt is left by `retry` alone, which forgets all its evidence; `abort` works everywhere but after a
  promotion whose holdback is none or was ended, which nothing moves any more;
- a failing guardrail or a hard trip takes the canary back, paused or not (with `mode: manual` a hard trip and silence);
- what has failed stays so for the attempt, also where `mode: manual` only holds for it;
- a step is passed only with its bake over, its split applied, its requests and windows seen, every guardrail at `pass`
  and replicas for the next weight, or by an operator;
- each arrow above is walked, and no other.
"""


def document() -> str:
    """The whole document."""
    return _HEAD + _diagram() + "\n" + _table() + _PROVED


def _diagram() -> str:
    drawn: dict[tuple[State, State], list[str]] = defaultdict(list)
    for (state, event), transition in TRANSITIONS.items():
        for to in transition.to:
            if to != state or (event is Ticked and state == State.BAKING):
                drawn[state, to].append(event.__name__)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {State.PREPARING}: RolloutStarted"]
    for (state, to), events in sorted(drawn.items()):
        lines.append(f"    {state} --> {to}: {', '.join(sorted(events))}")
    return "\n".join([*lines, "```", ""])


def _table() -> str:
    lines = ["| state | event | can lead to |", "|---|---|---|"]
    for (state, event), transition in sorted(TRANSITIONS.items(), key=lambda item: (item[0][0], item[0][1].__name__)):
        lines.append(f"| {state} | {event.__name__} | {', '.join(sorted(transition.to))} |")
    return "\n".join([*lines, ""])
