"""The bounded queue: first come, first served, nothing counted twice."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from router.admission import Admission, AdmissionQueue


def test_requests_are_admitted_then_queued_then_refused() -> None:
    queue = AdmissionQueue(max_in_flight=2, max_queued=1)
    answers = [queue.arrive(name, 1, 0.0) for name in "abcd"]
    assert answers == [Admission.ADMITTED, Admission.ADMITTED, Admission.QUEUED, Admission.REFUSED]
    assert (queue.in_flight, queue.queued) == (2, 1)
    assert queue.leave("a", 1.0) == ["c"]
    assert (queue.in_flight, queue.queued) == (2, 0)


def test_a_request_with_many_choices_waits_for_all_its_streams_and_is_not_overtaken() -> None:
    queue = AdmissionQueue(max_in_flight=4, max_queued=9)
    queue.arrive("a", 3, 0.0)
    assert queue.arrive("wide", 2, 0.0) is Admission.QUEUED
    assert queue.arrive("small", 1, 0.0) is Admission.QUEUED
    assert queue.leave("a", 1.0) == ["wide", "small"]


def test_a_request_wider_than_the_limit_runs_alone() -> None:
    queue = AdmissionQueue(max_in_flight=4, max_queued=9)
    assert queue.arrive("huge", 100, 0.0) is Admission.ADMITTED
    assert queue.arrive("b", 1, 0.0) is Admission.QUEUED
    assert queue.leave("huge", 1.0) == ["b"]


def test_giving_up_in_the_queue_lets_the_next_one_through() -> None:
    queue = AdmissionQueue(max_in_flight=2, max_queued=9)
    queue.arrive("a", 1, 0.0)
    queue.arrive("wide", 2, 0.0)
    queue.arrive("b", 1, 0.0)
    assert queue.leave("wide", 0.5) == ["b"]
    assert queue.leave("wide", 0.6) == []


def test_retry_after_grows_with_the_queue_and_with_how_long_requests_hold_their_streams() -> None:
    queue = AdmissionQueue(max_in_flight=1, max_queued=100)
    assert queue.retry_after_seconds() == 1.0
    for number in range(40):
        queue.arrive(f"old-{number}", 1, 0.0)
        queue.leave(f"old-{number}", 10.0)
    for number in range(4):
        queue.arrive(f"new-{number}", 1, 20.0)
    assert 30 < queue.retry_after_seconds() <= 40
    assert AdmissionQueue(1, 0).retry_after_seconds() == 1.0


@given(st.lists(st.tuples(st.sampled_from(["arrive", "leave"]), st.integers(0, 12), st.integers(1, 6)), max_size=80))
def test_it_agrees_with_a_plain_fifo_in_any_order_of_events(events: list[tuple[str, int, int]]) -> None:
    queue = AdmissionQueue(max_in_flight=4, max_queued=3)
    running: dict[str, int] = {}
    waiting: deque[tuple[str, int]] = deque()
    for number, (kind, who, streams) in enumerate(events):
        name = f"{who}-{number}"
        width = min(streams, 4)
        if kind == "arrive":
            fits = not waiting and sum(running.values()) + width <= 4
            expected = Admission.ADMITTED if fits else Admission.QUEUED if len(waiting) < 3 else Admission.REFUSED
            assert queue.arrive(name, streams, float(number)) is expected
            if expected is Admission.ADMITTED:
                running[name] = width
            elif expected is Admission.QUEUED:
                waiting.append((name, width))
        elif running or waiting:
            known = [*running, *(n for n, _ in waiting)]
            gone = known[who % len(known)]
            running.pop(gone, None)
            waiting = deque(item for item in waiting if item[0] != gone)
            admitted = []
            while waiting and sum(running.values()) + waiting[0][1] <= 4:
                first, size = waiting.popleft()
                running[first] = size
                admitted.append(first)
            assert queue.leave(gone, float(number)) == admitted
        assert queue.in_flight == sum(running.values()) <= 4
        assert queue.queued == len(waiting) <= 3
