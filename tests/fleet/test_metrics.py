from __future__ import annotations

import random
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fleet.metrics import (
    FAMILIES,
    GuardrailSnapshot,
    PathSnapshot,
    RolloutSnapshot,
    Snapshot,
    render,
)
from fleet.traffic import PathTally, ReplicaReport


def scrape(snapshot: Snapshot) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found = {}
    for family in text_string_to_metric_families(render(snapshot).decode()):
        for sample in family.samples:
            found[sample.name, frozenset(sample.labels.items())] = sample.value
    return found


def value(snapshot: Snapshot, name: str, **labels: str) -> float:
    if FAMILIES.get(name.removesuffix("_total").removesuffix("_bucket").removesuffix("_sum")) is None:
        assert any(name in family.scraped_names for family in FAMILIES.values())
    return scrape(snapshot)[name, frozenset(labels.items())]


def path(tally: PathTally | None = None, replicas=(), **changes) -> PathSnapshot:
    known = {"replicas_wanted": 1, "preemptions": 0, "in_flight": 0} | changes
    return PathSnapshot("speculative", tally or PathTally(), replicas, **known)


TIMES = (("idle", 0.0), ("a", 0.01), ("b", 0.03))
LABELS = {"model_name": "tiny", "engine": "0", "path": "speculative"}


def test_counters_carry_vllms_names_and_labels():
    tally = PathTally(prompt_tokens=100, output_tokens=40, rounds=10, drafted=40, accepted=28, accepted_at={0: 9, 1: 7})
    tally.finish_reasons = {"stop": 3, "length": 1}
    snapshot = Snapshot("tiny", [path(tally, preemptions=2)])
    assert value(snapshot, "vllm:prompt_tokens_total", **LABELS) == 100
    assert value(snapshot, "vllm:generation_tokens_total", **LABELS) == 40
    assert value(snapshot, "vllm:spec_decode_num_drafts_total", **LABELS) == 10
    assert value(snapshot, "vllm:spec_decode_num_draft_tokens_total", **LABELS) == 40
    assert value(snapshot, "vllm:spec_decode_num_accepted_tokens_total", **LABELS) == 28
    assert value(snapshot, "vllm:spec_decode_num_accepted_tokens_per_pos_total", position="1", **LABELS) == 7
    assert value(snapshot, "vllm:request_success_total", finished_reason="stop", **LABELS) == 3
    assert value(snapshot, "vllm:num_preemptions_total", **LABELS) == 2


def test_gauges_are_sums_and_means_over_the_replicas():
    replicas = [
        ReplicaReport("speculative", "a", 1, 3, 1, 100, 1000, 0, 0, draft="healthy", draft_seconds=0.01),
        ReplicaReport("speculative", "b", 2, 5, 0, 300, 1000, 0, 0, draft="lost", draft_seconds=0.03),
    ]
    replicas = [replace(replica, gpu_memory_bytes=gib * 2**30) for replica, gib in zip(replicas, (3, 4), strict=True)]
    snapshot = Snapshot("tiny", [path(replicas=replicas, replicas_wanted=3, in_flight=8)])
    assert value(snapshot, "vllm:num_requests_running", **LABELS) == 8
    assert value(snapshot, "vllm:num_requests_waiting", **LABELS) == 1
    assert value(snapshot, "vllm:kv_cache_usage_perc", **LABELS) == pytest.approx(0.2)
    assert value(snapshot, "fleet_draft_seconds", **LABELS) == pytest.approx(0.02)
    assert value(snapshot, "fleet_draft_workers", health="lost", **LABELS) == 1
    assert value(snapshot, "fleet_replicas_wanted", **LABELS) == 3
    assert value(snapshot, "fleet_gpu_memory_bytes", **LABELS) == 7 * 2**30
    assert value(snapshot, "fleet_streams_in_flight", **LABELS) == 8


def test_events_between_targets_and_drafts_are_counted_where_there_are_drafts():
    snapshot = Snapshot("tiny", [path(draft_link={"late": 3}), replace(path(), path="baseline")])
    assert value(snapshot, "fleet_draft_link_total", event="late", **LABELS) == 3
    assert value(snapshot, "fleet_draft_link_total", event="wrong", **LABELS) == 0
    assert not any("fleet_draft_link" in name and ("path", "baseline") in labels for name, labels in scrape(snapshot))


def test_a_replica_that_had_nothing_to_time_shortens_no_mean():
    replicas = [ReplicaReport("speculative", name, 1, 0, 0, 0, 1000, 0, 0, verify_seconds=t) for name, t in TIMES]
    snapshot = Snapshot("tiny", [path(replicas=replicas)])
    assert value(snapshot, "fleet_verify_seconds", **LABELS) == pytest.approx(0.02)
    assert value(snapshot, "fleet_accept_seconds", **LABELS) == 0.0
    accepting = [replace(replica, accept_seconds=replica.verify_seconds / 10) for replica in replicas]
    snapshot = Snapshot("tiny", [path(replicas=accepting)])
    assert value(snapshot, "fleet_accept_seconds", **LABELS) == pytest.approx(0.002)
    assert value(snapshot, "fleet_draft_seconds", **LABELS) == 0.0


def test_histograms_resolve_a_millisecond_and_keep_exact_sums():
    source, tally, values = random.Random(1), PathTally(), []
    for _ in range(500):
        values.append(source.uniform(0.0005, 0.03))
        tally.itl.add(values[-1])
    snapshot = Snapshot("tiny", [path(tally)])
    name = "vllm:inter_token_latency_seconds"
    for edge in (0.001, 0.002, 0.005, 0.009, 0.02):
        counted = value(snapshot, f"{name}_bucket", le=str(edge), **LABELS)
        assert sum(v <= edge * 0.98 for v in values) <= counted <= sum(v <= edge * 1.02 for v in values)
    assert value(snapshot, f"{name}_bucket", le="+Inf", **LABELS) == 500
    assert value(snapshot, f"{name}_count", **LABELS) == 500
    assert value(snapshot, f"{name}_sum", **LABELS) == pytest.approx(sum(values))


def test_a_ratio_of_nothing_lies_at_or_below_the_lowest_edge():
    tally = PathTally()
    for ratio in (0.0, 0.25, 0.5, 1.0):
        tally.request_acceptance.add(1.0 + ratio)
    snapshot, name = Snapshot("tiny", [path(tally)]), "fleet_request_acceptance_ratio"
    counts = [value(snapshot, f"{name}_bucket", le=le, **LABELS) for le in ("0.0", "0.3", "0.5", "0.9", "1.0")]
    assert counts == [1, 2, 3, 3, 4]
    assert value(snapshot, f"{name}_sum", **LABELS) == pytest.approx(1.75)


@pytest.mark.parametrize("family", [item for item in FAMILIES.values() if item.buckets], ids=lambda item: item.name)
def test_edges_rise_and_time_resolves_a_millisecond(family):
    assert list(family.buckets) == sorted(set(family.buckets))
    if family.name.endswith("_seconds"):
        assert family.buckets[0] == 0.001


def test_the_rollout_is_shown_by_state_weight_and_guardrail():
    rollout = RolloutSnapshot("baking", 25.0, 24.5, [GuardrailSnapshot("itl_p95", 1, 3.5, 60.0)])
    snapshot = Snapshot("tiny", [], rollout, trips={"oom": 2}, split_version=7, routers=2, routers_current=1)
    assert value(snapshot, "fleet_rollout_state", state="baking") == 1
    assert value(snapshot, "fleet_rollout_state", state="promoted") == 0
    assert value(snapshot, "fleet_rollout_weight_set_percent") == 25
    assert value(snapshot, "fleet_rollout_weight_realised_percent") == 24.5
    assert value(snapshot, "fleet_guardrail_level", guardrail="itl_p95") == 1
    assert value(snapshot, "fleet_guardrail_e_value", guardrail="itl_p95") == 3.5
    assert value(snapshot, "fleet_guardrail_trips_total", guardrail="oom") == 2
    assert value(snapshot, "fleet_guardrail_trips_total", guardrail="itl_p95") == 0


def test_evidence_is_stale_by_reason_and_absent_without_evidence():
    snapshot = Snapshot("tiny", [], evidence_stale={"traffic_mix": True, "acceptance": False})
    assert value(snapshot, "fleet_evidence_stale", reason="traffic_mix") == 1
    assert value(snapshot, "fleet_evidence_stale", reason="acceptance") == 0
    assert b"fleet_evidence_stale{" not in render(Snapshot("tiny", []))


def test_every_family_has_help_and_every_sample_its_declared_labels():
    tally = PathTally(accepted_at={0: 1})
    tally.itl.add(0.01)
    rollout = RolloutSnapshot("baking", 25.0, 24.5, [GuardrailSnapshot("itl_p95", 1, 3.5, 60.0)])
    paths = [path(tally, draft_link={"late": 1})]
    snapshot = Snapshot("tiny", paths, rollout, evidence_stale={"fleet": True}, webhook_failures={"ops": 3})
    text = render(snapshot).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert set(families) == set(FAMILIES)
    for name, family in families.items():
        declared = FAMILIES[name]
        assert family.documentation == declared.help
        assert family.type == declared.kind
        assert family.samples
        for sample in family.samples:
            assert sample.name in declared.scraped_names
            assert set(sample.labels) - {"le"} == set(declared.all_labels)
