"""`python -m canary.rollout_diagram` draws TRANSITIONS in docs/rollout_states.md; `--check` says if that is current."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

from canary.events import Ticked
from canary.rollout import TRANSITIONS
from canary.rollout_state import State

DOCUMENT = Path(__file__).parent.parent / "docs" / "rollout_states.md"
_HEAD = """\
# Rollout states

Generated from `TRANSITIONS` in `canary/rollout.py` by `python -m canary.rollout_diagram`; do not edit.
An event that a state does not list is refused (`InvalidTransition`) and changes nothing.
Events that can only leave a state as it is are listed in the table, not drawn.

"""


def document() -> str:
    """The whole document."""
    return _HEAD + _diagram() + "\n" + _table()


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the document is not current")
    if parser.parse_args().check:
        is_current = DOCUMENT.exists() and DOCUMENT.read_text() == document()
        if not is_current:
            sys.stderr.write(f"{DOCUMENT} is not current: run python -m canary.rollout_diagram\n")
        return 0 if is_current else 1
    DOCUMENT.write_text(document())
    return 0


if __name__ == "__main__":
    sys.exit(main())
