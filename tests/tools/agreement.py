"""When does a tool say the same as the router?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deploy.bench.other_tools import Figure
from deploy.bench.recorder import Answer


def speculation_of(answers: Sequence[Answer]) -> dict[str, int]:
    """What all answers together say of their own speculation."""
    counts = dict.fromkeys(("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens"), 0)
    for answer in answers:
        assert answer.metrics is not None
        for name in counts:
            counts[name] += (answer.metrics["speculative_decoding"] or {}).get(name, 0)
    return counts


def assert_agree(theirs: Mapping[str, Figure], ours: Mapping[str, float]) -> None:
    """Each of a tool's figures is ours within twice its own deviation, or within a fifth."""
    assert theirs.keys() == ours.keys()
    for name, figure in theirs.items():
        allowed = max(2 * figure.deviation, ours[name] / 5)
        assert abs(figure.mean - ours[name]) <= allowed, f"{name}: theirs {figure}, ours {ours[name]}"
