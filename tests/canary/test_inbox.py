from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from canary.inbox import Inbox
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
