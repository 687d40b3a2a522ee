"""When does evidence no longer hold: another fleet, another mix of traffic, other acceptance, or more load?"""

import math
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canary.drift import Accepted, Drift, LiveTraffic, Reason, drifts, psi, psi_limit
from canary.drift_watch import JUDGE_SECONDS, SPAN_SECONDS, DriftWatch
from canary.events import RolloutStarted
from canary.evidence import MatrixEvidence, Span, changed_parts, changes
from canary.fleet_view import FleetView
from canary.plan import PathFacts
from canary.rollout_state import State, begin
from fleet.histogram import LogHistogram
from fleet.traffic import Eligibility, PathTally, ReplicaReport, RouterReport, SamplingMode
from tests.canary.evidence import matrix_evidence, plan_on

KINDS = {"greedy/≤256/≤32": 60, "greedy/≤256/≤128": 60, "greedy/≤1024/≤128": 30}


def live(**changes: object) -> LiveTraffic:
    return replace(LiveTraffic(kinds={kind: 4 * count for kind, count in KINDS.items()}), **changes)  # type: ignore[arg-type]


def reasons(evidence: MatrixEvidence, traffic: LiveTraffic) -> list[Reason]:
    return [drift.reason for drift in drifts(evidence, traffic)]


def drifts_where_it_wins(evidence: MatrixEvidence, traffic: LiveTraffic) -> tuple[Drift, ...]:
    return drifts(evidence, traffic, Eligibility(cells=tuple(cell.winning() for cell in evidence.cells)))


counts = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 1000), min_size=1)


@given(counts, counts)
def test_psi_is_that_of_a_plain_loop_and_never_negative(expected: dict[str, int], seen: dict[str, int]) -> None:
    kinds = sorted({*expected, *seen})
    total = 0.0
    for kind in kinds:
        was = (expected.get(kind, 0) + 0.5) / sum(expected.get(other, 0) + 0.5 for other in kinds)
        now = (seen.get(kind, 0) + 0.5) / sum(seen.get(other, 0) + 0.5 for other in kinds)
        total += (now - was) * math.log(now / was)
    assert psi(expected, seen) == pytest.approx(total, abs=1e-12)
    assert psi(expected, seen) >= 0
    assert psi(expected, seen) == pytest.approx(psi(seen, expected))


def test_traffic_that_did_not_change_is_seldom_called_another() -> None:
    generator = random.Random(1)
    shares = [0.3, 0.25, 0.2, 0.1, 0.05, 0.05, 0.03, 0.02]
    false = 0
    for _ in range(400):
        was, now = (Counter(map(str, generator.choices(range(8), shares, k=size))) for size in (60, 100))
        false += psi(was, now) > psi_limit(was, now)
    assert false <= 4


def test_another_mix_of_lengths_makes_it_stale_and_names_what_moved() -> None:
    evidence = matrix_evidence(kinds=KINDS)
    assert reasons(evidence, live()) == []
    longer = live(kinds={"greedy/>16384/>512": 300, "greedy/≤256/≤32": 20})
    (drift,) = drifts(evidence, longer)
    assert drift.reason is Reason.TRAFFIC_MIX
    assert "greedy/>16384/>512 went from 0% to 94%" in drift.detail
    assert drift.value is not None
    assert drift.limit is not None
    assert drift.value > drift.limit


def test_how_often_a_measured_sampling_mode_comes_does_not_matter_but_one_that_was_never_measured_does() -> None:
    sampled = {kind.replace("greedy", "sampled"): count for kind, count in KINDS.items()}
    both = matrix_evidence(kinds=KINDS | sampled)
    mostly = live(kinds={kind: 1000 * count for kind, count in sampled.items()} | KINDS)
    assert reasons(both, mostly) == []
    (drift,) = drifts(matrix_evidence(kinds=KINDS), live(kinds=sampled | KINDS))
    assert drift.detail.startswith("sampled requests were never measured, 150 came: add them to the matrix")


SAMPLED = {kind.replace("greedy", "sampled"): count for kind, count in KINDS.items()}
LONG = {"greedy/≤16384/≤128": 300, "greedy/>16384/≤128": 300}


def test_a_mode_that_no_cell_admits_is_no_drift_measured_or_not() -> None:
    evidence = matrix_evidence(kinds=KINDS)
    assert {cell.sampling for cell in evidence.cells} == {SamplingMode.GREEDY}
    traffic = live(kinds=SAMPLED | KINDS)
    assert drifts_where_it_wins(evidence, traffic) == ()
    assert len(drifts(evidence, traffic)) == 1
    other = matrix_evidence(kinds=KINDS | {"sampled/>16384/>512": 100})
    assert drifts_where_it_wins(other, traffic) == ()
    assert len(drifts(other, traffic)) == 1
    (drift,) = drifts_where_it_wins(evidence, live(kinds=LONG))
    assert drift.reason is Reason.TRAFFIC_MIX


def test_prompts_that_are_longer_than_the_rule_admits_are_not_missed_where_a_matrix_asked_them() -> None:
    evidence = matrix_evidence(kinds=KINDS | LONG)
    short = {kind: count for kind, count in KINDS.items() if "≤256/" in kind}
    assert reasons(evidence, live(kinds=short)) == [Reason.TRAFFIC_MIX]
    assert drifts(evidence, live(kinds=short), Eligibility(max_prompt_tokens=256)) == ()
    (drift,) = drifts(matrix_evidence(kinds=LONG), live(kinds=short), Eligibility(max_prompt_tokens=256))
    assert drift.detail.startswith("greedy requests were never measured, 120 came")


@pytest.mark.parametrize(("mean", "requests", "is_stale"), [(0.6, 500, False), (0.4, 500, True), (0.4, 99, False)])
def test_acceptance_outside_its_interval_makes_it_stale_once_there_are_enough_requests(
    mean: float, requests: int, is_stale: bool
) -> None:
    evidence = matrix_evidence(acceptance={SamplingMode.GREEDY: Span(low=0.5, high=0.7)})
    traffic = live(acceptance={SamplingMode.GREEDY: Accepted(mean, requests)})
    assert (Reason.ACCEPTANCE in reasons(evidence, traffic)) is is_stale


def won(above: int, *, draft_length: int, low: float, high: float) -> dict[str, object]:
    """A cell as it lies in a plan."""
    loads = {"sampling": "greedy", "above": above, "up_to": above + 4}
    return loads | {"draft_length": draft_length, "acceptance": {"low": low, "high": high}}


@pytest.mark.parametrize(
    ("mean", "always", "where_it_wins"), [(0.41, False, True), (0.45, True, True), (0.7, True, False)]
)
def test_drafts_that_are_kept_short_where_it_wins_are_held_to_what_short_drafts_had(
    mean: float, always: bool, where_it_wins: bool
) -> None:
    short = won(0, draft_length=1, low=0.66, high=0.74)
    evidence = matrix_evidence(acceptance={"greedy": {"low": 0.38, "high": 0.44}}, cells=[short])
    traffic = live(acceptance={SamplingMode.GREEDY: Accepted(mean, 500)})
    assert bool(drifts(evidence, traffic)) is always
    assert bool(drifts_where_it_wins(evidence, traffic)) is where_it_wins


def test_cells_with_drafts_of_their_own_length_may_be_mixed_in_any_way() -> None:
    cells = [won(0, draft_length=4, low=0.38, high=0.44), won(4, draft_length=1, low=0.66, high=0.75)]
    evidence = matrix_evidence(cells=cells)
    for mean, is_stale in ((0.4, False), (0.55, False), (0.37, True), (0.76, True)):
        traffic = live(acceptance={SamplingMode.GREEDY: Accepted(mean, 500)})
        assert bool(drifts_where_it_wins(evidence, traffic)) is is_stale


@pytest.mark.parametrize(
    ("looks", "is_stale"),
    [([8] * 100, False), ([9] * 5 + [8] * 95, False), ([9] * 6 + [8] * 94, True), ([20] * 10, False)],
)
def test_more_open_than_was_measured_makes_it_stale_unless_it_is_rare_or_hardly_watched(
    looks: list[int], is_stale: bool
) -> None:
    assert (Reason.CONCURRENCY in reasons(matrix_evidence(peak_open=8), live(open_requests=looks))) is is_stale


parts = st.dictionaries(st.sampled_from("abcd"), st.sampled_from("xyz"))


@given(parts, parts)
def test_every_part_that_differs_is_named_and_no_other(was: dict[str, str], now: dict[str, str]) -> None:
    named = {line.split(" was ")[0] for line in changed_parts(was, now)}
    assert named == {part for part in "abcd" if was.get(part) != now.get(part)}


def test_a_path_that_does_not_run_says_nothing_about_the_evidence() -> None:
    assert changes({"a": {"x": "1"}}, {}) == []
    assert changes({"a": {"x": "1"}}, {"a": {"x": "2"}, "b": {"x": "1"}}) == ["a: x was 1, is 2"]


class TestTheWatch:
    def setup_method(self) -> None:
        plan = plan_on(matrix_evidence(kinds=KINDS, acceptance={"greedy": {"low": 0.5, "high": 0.7}}, peak_open=4))
        self.rollout = begin(RolloutStarted(0.0, "r", plan))
        self.view = FleetView({"baseline": PathFacts(1, False), "speculative": PathFacts(1, True)})
        self.watch = DriftWatch()
        self.served = {"speculative": PathTally(kinds={"greedy/>16384/>512": 10**6})}

    def serve(self, kinds: dict[str, int], acceptance: float = 0.6) -> None:
        accepted = LogHistogram()
        accepted.add(1 + acceptance, sum(kinds.values()))
        tally = PathTally(kinds=dict(kinds), acceptance_by={"greedy/short": accepted})
        self.served["speculative"].merge(tally)

    def tick(self, now: float) -> list[Reason]:
        self.watch.tick(now, self.rollout, self.served, self.view)
        return [drift.reason for drift in self.watch.drifts]

    def test_only_what_came_since_counts_and_is_forgotten_in_time(self) -> None:
        assert self.tick(0.0) == []
        self.serve(KINDS)
        assert self.tick(JUDGE_SECONDS) == []
        self.serve({"greedy/>16384/>512": 500}, acceptance=0.1)
        assert self.tick(2 * JUDGE_SECONDS) == [Reason.TRAFFIC_MIX, Reason.ACCEPTANCE]
        for step in range(1, 12):
            self.serve(KINDS)
            found = self.tick(2 * JUDGE_SECONDS + step * SPAN_SECONDS / 10)
        assert found == []

    def test_load_and_a_replica_that_was_exchanged_are_seen(self) -> None:
        for second in range(100):
            report = RouterReport("r", second, 1, {}, {}, typical={"speculative": 9})
            self.view.router_reported(report, float(second))
            replica = ReplicaReport("speculative", "x", 1, 0, 0, 0, 1, 0, 0, fingerprint=(("model.weights", "other"),))
            self.view.replica_reported(replica, float(second))
            found = self.tick(float(second))
        assert found == [Reason.FLEET, Reason.CONCURRENCY]
        assert "speculative: model.weights was abc, is other" in self.watch.drifts[0].detail

    def test_requests_that_name_their_path_are_measuring_and_no_load_of_the_traffic(self) -> None:
        for second in range(100):
            report = RouterReport("r", second, 1, {}, {}, in_flight={"speculative": 64}, typical={"speculative": 4})
            self.view.router_reported(report, float(second))
            found = self.tick(float(second))
        assert found == []

    def test_a_rollout_where_it_wins_is_held_to_the_cells_that_it_serves(self) -> None:
        whole = {"greedy": {"low": 0.3, "high": 0.5}}
        evidence = matrix_evidence(kinds=KINDS, acceptance=whole, cells=[won(0, draft_length=1, low=0.7, high=0.9)])
        for speculate, expected in (("where_it_wins", []), ("always", [Reason.ACCEPTANCE])):
            self.rollout = begin(RolloutStarted(0.0, "r", plan_on(evidence, speculate=speculate)))
            self.tick(0.0)
            self.serve(KINDS, acceptance=0.8)
            assert self.tick(JUDGE_SECONDS) == expected

    def test_traffic_that_no_router_has_held_against_the_rule_yet_is_not_that_of_the_evidence(self) -> None:
        evidence = matrix_evidence(kinds=KINDS)
        plan = plan_on(evidence, eligible={"sampling": "greedy"})
        preparing = begin(RolloutStarted(0.0, "r", plan))
        baking, promoted = replace(preparing, state=State.BAKING), replace(preparing, state=State.PROMOTED)
        stages = ((preparing, []), (baking, [Reason.TRAFFIC_MIX]), (promoted, [Reason.TRAFFIC_MIX]))
        for number, (self.rollout, expected) in enumerate(stages):
            at = number * 10 * JUDGE_SECONDS
            assert self.tick(at) == []
            self.serve(SAMPLED)
            assert self.tick(at + JUDGE_SECONDS) == expected

    def test_what_was_taken_back_is_watched_no_longer(self) -> None:
        self.tick(0.0)
        assert self.watch.evidence is not None
        self.rollout = replace(self.rollout, state=State.ROLLED_BACK)
        self.tick(1.0)
        assert self.watch.evidence is None
