"""Accounts and reports: charged to the assigned path, counted exactly once, and silence is not perfection."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.generation import FinishReason, Round, TokenChunk
from fleet.traffic import HardTrip, HardTripKind, Outcome, PathTally, RouterReport, SamplingMode
from router.ledger import Account, Ledger
from router.split import Assignment

CANARY = Assignment("speculative", is_compared=True, is_typical=True)
OVERRIDDEN = Assignment("speculative", is_compared=False)


def chunk(
    tokens: int, *, finish: FinishReason | None = None, round: Round | None = None, queue: float | None = None
) -> TokenChunk:
    return TokenChunk("r", tuple(range(tokens)), "x" * tokens, finish=finish, round=round, queue_seconds=queue)


def report_of(ledger: Ledger, now: float = 0.0) -> RouterReport:
    return ledger.next_report(now, applied_split=7, queued=2)


def opened(ledger: Ledger, assignment: Assignment = CANARY, name: str = "r", choices: int = 1) -> Account:
    account = ledger.open(name, assignment, 10.0, choices)
    account.admitted(10.5, prompt_tokens=12, sampling=SamplingMode.GREEDY)
    return account


def test_a_request_is_counted_from_admission_to_outcome() -> None:
    ledger = Ledger("router-1")
    account = opened(ledger)
    account.note(0, 11.0, chunk(1, queue=0.25))
    account.note(0, 11.1, chunk(3, round=Round(4, 2)))
    account.note(0, 11.2, chunk(1, round=Round(4, 0)))
    account.note(0, 11.3, chunk(1, round=Round(0, 0, late=True)))
    account.note(0, 11.4, chunk(2, finish=FinishReason.STOP, round=Round(4, 1)))
    assert report_of(ledger).in_flight == {"speculative": 0}
    ledger.acknowledge(1)
    account.close(Outcome.DONE)
    tally = report_of(ledger).compared["speculative"]
    assert tally.outcomes == {"done": 1}
    assert tally.request_acceptance.total == 1
    assert tally.assigned == 0, "already reported"


def test_the_first_report_holds_latencies_and_speculation_by_their_definitions() -> None:
    ledger = Ledger("router-1")
    account = opened(ledger)
    account.note(0, 11.0, chunk(1, queue=0.25))
    account.note(0, 11.1, chunk(3, round=Round(4, 2)))
    account.note(0, 11.2, chunk(1, round=Round(4, 0)))
    account.note(0, 11.3, chunk(1, round=Round(0, 0, late=True)))
    account.note(0, 11.4, chunk(2, finish=FinishReason.STOP, round=Round(4, 1)))
    report = report_of(ledger)
    tally = report.compared["speculative"]
    assert (report.router_id, report.sequence, report.applied_split, report.queued) == ("router-1", 1, 7, 2)
    assert (tally.assigned, tally.prompt_tokens, tally.output_tokens) == (1, 12, 8)
    assert (tally.rounds, tally.drafted, tally.accepted, tally.rejected_rounds) == (3, 12, 3, 1)
    assert (tally.empty_rounds, tally.late_rounds) == (1, 1)
    assert tally.accepted_at == {0: 2, 1: 1}
    assert tally.finish_reasons == {"stop": 1}
    assert tally.ttft.mean() == pytest.approx(1.0)
    assert tally.queue.mean() == pytest.approx(0.75)
    assert tally.tpot.mean() == pytest.approx(0.4 / 7)
    assert tally.e2e.mean() == pytest.approx(1.4)
    assert (tally.gap.total, tally.itl.total) == (4, 7)
    assert report.served["speculative"].to_json() == tally.to_json()


def test_overridden_and_ineligible_requests_are_served_but_not_compared() -> None:
    ledger = Ledger("router-1")
    opened(ledger, CANARY, "a").note(0, 11.0, chunk(1))
    opened(ledger, OVERRIDDEN, "b").note(0, 11.0, chunk(2))
    report = report_of(ledger)
    assert report.compared["speculative"].output_tokens == 1
    assert report.served["speculative"].output_tokens == 3
    assert report.in_flight == {"speculative": 2}


def test_a_request_that_falls_back_stays_charged_to_its_path_and_counts_one_fallback() -> None:
    ledger = Ledger("router-1")
    account = opened(ledger)
    account.fell_back("baseline")
    account.fell_back("baseline")
    account.note(0, 11.0, chunk(1))
    report = report_of(ledger)
    assert report.compared["speculative"].fallbacks == 1
    assert report.compared["speculative"].output_tokens == 1
    assert "baseline" not in report.served
    assert report.in_flight == {"baseline": 1}


def test_shed_requests_show_in_what_is_served_only() -> None:
    ledger = Ledger("router-1")
    ledger.turned_away("baseline", Outcome.SHED)
    report = report_of(ledger)
    assert report.compared == {}
    assert report.served["baseline"].outcomes == {"shed": 1}
    assert report.served["baseline"].assigned == 0


def test_a_report_is_sent_again_unchanged_until_acknowledged_and_news_waits_for_the_next() -> None:
    ledger = Ledger("router-1")
    account = opened(ledger)
    first = report_of(ledger)
    before = first.compared["speculative"].to_json()
    account.note(0, 11.0, chunk(1))
    ledger.tripped(HardTrip("speculative", HardTripKind.OOM, "no memory"))
    assert report_of(ledger) is first
    assert first.compared["speculative"].to_json() == before
    assert ledger.has_trips
    ledger.acknowledge(0)
    assert report_of(ledger) is first
    ledger.acknowledge(1)
    second = report_of(ledger)
    assert second.sequence == 2
    assert second.compared["speculative"].output_tokens == 1
    assert [trip.kind for trip in second.hard_trips] == [HardTripKind.OOM]
    assert ledger.has_trips
    ledger.acknowledge(2)
    assert not ledger.has_trips
    assert report_of(ledger).compared == {}


def test_a_hung_stream_is_charged_for_every_second_of_silence_however_often_it_is_looked_at() -> None:
    ledger = Ledger("router-1")
    account = opened(ledger)
    account.note(0, 11.0, chunk(8))
    account.note(0, 11.5, chunk(1))
    totals = PathTally()
    for quarter in range(1, 17):
        report = report_of(ledger, 11.5 + quarter / 4)
        totals.merge(report.compared.get("speculative", PathTally()))
        ledger.acknowledge(report.sequence)
    assert totals.stalled == 4
    assert totals.itl.total == 1 + 4
    assert (totals.itl.quantile(0.99) or 0.0) > 2.0 / 8


def test_waiting_for_the_first_token_is_charged_as_silence_but_is_no_inter_token_latency() -> None:
    ledger = Ledger("router-1")
    opened(ledger)  # accepted at 10.0, admitted at 10.5
    tally = report_of(ledger, 13.5).compared["speculative"]
    assert (tally.stalled, tally.itl.total) == (3, 0)


def test_streams_that_have_finished_are_never_silent() -> None:
    ledger = Ledger("router-1")
    account = opened(ledger, choices=2)
    account.note(0, 11.0, chunk(1, finish=FinishReason.STOP))
    tally = report_of(ledger, 12.5).compared["speculative"]
    assert tally.stalled == 2
    assert not account.is_finished


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=60))
def test_every_token_is_reported_exactly_once_whatever_is_lost_or_repeated(
    steps: list[tuple[int, bool, bool]],
) -> None:
    ledger = Ledger("router-1")
    account = opened(ledger)
    sent = 0
    stored: dict[int, int] = {}
    for number, (tokens, reports, is_stored) in enumerate(steps):
        if tokens:
            account.note(0, 11.0 + number, chunk(tokens))
            sent += tokens
        if reports:
            report = report_of(ledger, 11.0 + number)
            if is_stored:
                stored[report.sequence] = report.compared.get("speculative", PathTally()).output_tokens
                ledger.acknowledge(report.sequence)
    while (report := report_of(ledger, 99.0)).compared:
        stored[report.sequence] = report.compared["speculative"].output_tokens
        ledger.acknowledge(report.sequence)
    assert sum(stored.values()) == sent


def test_the_control_is_part_of_stable_and_reported_apart() -> None:
    ledger = Ledger("router-1")
    stable = Assignment("baseline", is_compared=True, is_newcomer=True)
    opened(ledger, stable, "a").note(0, 11.0, chunk(1))
    opened(ledger, Assignment("baseline", True, is_control=True), "b").note(0, 11.0, chunk(2))
    opened(ledger, OVERRIDDEN, "c").note(0, 11.0, chunk(4))
    report = report_of(ledger)
    assert (report.compared["baseline"].output_tokens, report.control["baseline"].output_tokens) == (3, 2)
    assert (report.compared["baseline"].newcomers, set(report.control)) == (1, {"baseline"})
    assert report.open == {"baseline": 2}


def test_acceptance_is_kept_by_kind_of_request() -> None:
    ledger = Ledger("router-1")
    account = opened(ledger)
    account.note(0, 11.0, chunk(1))
    account.note(0, 11.1, chunk(3, round=Round(4, 2)))
    account.close(Outcome.DONE)
    strata = report_of(ledger).compared["speculative"].acceptance_by
    assert {name: histogram.sum for name, histogram in strata.items()} == {"greedy/short": 1.5}


def test_a_request_that_names_its_path_tells_nothing_of_the_traffic() -> None:
    ledger = Ledger("router-1")
    for name, assignment in (("a", CANARY), ("b", OVERRIDDEN), ("c", OVERRIDDEN)):
        account = opened(ledger, assignment, name, choices=2)
        account.note(0, 11.0, chunk(3, round=Round(4, 2)))
        if name != "c":
            account.note(1, 11.1, chunk(3, finish=FinishReason.STOP))
    report = report_of(ledger)
    assert (report.in_flight, report.typical) == ({"speculative": 4}, {"speculative": 1})
    assert report.open == {"speculative": 1}
    ledger.acknowledge(1)
    for name in ("d", "e"):
        account = opened(ledger, OVERRIDDEN, name)
        account.note(0, 11.0, chunk(1))
        account.note(0, 11.1, chunk(3, round=Round(4, 2)))
        account.close(Outcome.DONE)
    tally = report_of(ledger).served["speculative"]
    assert tally.request_acceptance.total == 2, "it is served all the same"
    assert tally.acceptance_by == {}


def test_open_gaps_are_kept_beside_what_is_published() -> None:
    ledger = Ledger("router-1")
    silent, hung = opened(ledger, name="a"), opened(ledger, name="b")
    hung.note(0, 10.8, chunk(1))
    tally = report_of(ledger, 13.0).compared["speculative"]
    assert (tally.waiting.total, tally.waiting.sum) == (2, pytest.approx(6.0))
    assert (tally.silence.total, tally.silence.sum) == (2, pytest.approx(4.4))
    assert (tally.ttft.total, tally.gap.total) == (1, 0)
    assert tally.stall.mean() == pytest.approx(1.99, abs=0.02)
    assert not silent.is_finished


def test_the_mix_of_the_traffic_is_of_what_the_rules_routed_and_what_was_completed() -> None:
    ledger = Ledger("r")
    typical = Assignment("baseline", is_compared=False, is_typical=True)
    for name, assignment, outcome in (
        ("a", typical, Outcome.DONE),
        ("b", typical, Outcome.CANCELLED),
        ("c", OVERRIDDEN, Outcome.DONE),
    ):
        account = ledger.open(name, assignment, 10.0, 1)
        account.admitted(10.0, prompt_tokens=300, sampling=SamplingMode.SAMPLED)
        account.note(0, 10.5, TokenChunk(name, tuple(range(40)), "", finish=FinishReason.LENGTH))
        account.close(outcome)
    report = ledger.next_report(11.0, applied_split=1, queued=0)
    assert report.served["baseline"].kinds == {"sampled/≤1024/≤128": 1}
    assert report.served["speculative"].kinds == {}
    assert PathTally.from_json(report.served["baseline"].to_json()) == report.served["baseline"]
