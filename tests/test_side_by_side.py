from __future__ import annotations

import io
import os
import sys

import pytest

from tests.side_by_side import NICEST, run


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.mark.parametrize(("front", "behind", "code"), [(0, 0, 0), (3, 0, 3), (0, 4, 4), (3, 4, 3)])
def test_a_failure_of_either_is_a_failure_and_both_are_run_to_their_ends(front: int, behind: int, code: int) -> None:
    shown = io.BytesIO()
    first, second = python(f"raise SystemExit({front})"), python(f"print('there'); raise SystemExit({behind})")
    assert run(first, second, shown) == code
    assert shown.getvalue() == b"there\n"


def test_the_one_behind_gives_way_and_the_first_does_not() -> None:
    # It says so once it is told to: the process is there a moment before its priority is set.
    wait = f"import os, time\nwhile os.getpriority(os.PRIO_PROCESS, 0) != {NICEST}: time.sleep(0.01)\nprint('nice')"
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    shown = io.BytesIO()
    first = python(f"import os; raise SystemExit(os.getpriority(os.PRIO_PROCESS, 0) != {usual})")
    assert run(first, python(wait), shown) == 0
    assert shown.getvalue() == b"nice\n"
