from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from canary.inbox import REMEMBERED, Inbox
from fleet.traffic import RouterReport


def report(router: str, sequence: int) -> RouterReport:
    return RouterReport(router, sequence, 1, {}, {})


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 8), st.booleans()), max_size=60))
def test_every_report_counts_once_and_in_its_routers_order(sendings):
    inbox, taken = Inbox({}), []
    for router, sequence, is_tick in sendings:
        inbox.offer(report(router, sequence))
        if is_tick:
            taken += [(item.router_id, item.sequence) for item in inbox.take()]
            inbox.commit()
    for router in "ab":
        numbers = [number for name, number in taken if name == router]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
        assert inbox.acknowledged(router) == (numbers[-1] if numbers else 0)


def test_nothing_is_acknowledged_before_it_is_committed():
    inbox = Inbox({})
    inbox.offer(report("a", 1))
    assert len(inbox.take()) == 1
    assert inbox.acknowledged("a") == 0
    inbox.commit()
    assert inbox.acknowledged("a") == 1


def test_after_a_restart_what_was_committed_does_not_count_again():
    inbox = Inbox({"a": 7})
    inbox.offer(report("a", 7))
    assert inbox.take() == []
    assert inbox.acknowledged("a") == 7
    inbox.offer(report("a", 8))
    assert [item.sequence for item in inbox.take()] == [8]


def test_a_router_whose_past_is_unknown_begins_with_what_it_still_has():
    inbox = Inbox({})
    inbox.offer(report("a", 57))
    assert [item.sequence for item in inbox.take()] == [57]


def test_a_gap_is_waited_for():
    inbox = Inbox({"a": 1})
    inbox.offer(report("a", 3))
    assert inbox.take() == []
    inbox.offer(report("a", 2))
    assert [item.sequence for item in inbox.take()] == [2, 3]


def settle(inbox: Inbox, *reports: RouterReport) -> list[str]:
    """Take and commit, as a tick does; which routers counted."""
    for item in reports:
        inbox.offer(item)
    taken = [item.router_id for item in inbox.take()]
    inbox.commit()
    return taken


def test_routers_that_are_gone_are_forgotten_the_longest_silent_first():
    inbox = Inbox({"old": 7, "back": 3, "alive": 9})
    settle(inbox, report("back", 4), *(report(f"r{n}", 1) for n in range(REMEMBERED - 1)))
    assert inbox.forget({"alive"}) == ["old"]
    assert inbox.forget({"alive"}) == []
    assert [inbox.acknowledged(name) for name in ("old", "back", "alive")] == [0, 4, 9]
    assert settle(inbox, report("back", 4), report("alive", 9)) == []


def test_a_living_router_is_never_forgotten_however_many_there_are():
    living = {f"r{n}" for n in range(2 * REMEMBERED)}
    inbox = Inbox(dict.fromkeys(sorted(living), 5))
    assert inbox.forget(living) == []
    assert settle(inbox, *(report(name, 5) for name in living)) == []


def test_what_a_forgotten_router_left_incomplete_is_dropped_with_it():
    inbox = Inbox({"a": 1} | {f"r{n}": 1 for n in range(REMEMBERED)})
    assert settle(inbox, report("a", 3)) == []
    assert inbox.forget(()) == ["a"]
    assert settle(inbox, report("a", 2)) == ["a"]
