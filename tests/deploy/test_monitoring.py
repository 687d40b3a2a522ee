import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from deploy.dashboard import render_dashboard
from deploy.dashboard_panels import OF_PATH
from fleet.metrics import FAMILIES, GuardrailSnapshot, PathSnapshot, RolloutSnapshot, Snapshot, render
from fleet.traffic import PathTally, ReplicaReport

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "deploy" / "manifests"
PROMETHEUS = MANIFESTS / "prometheus"
DASHBOARD = MANIFESTS / "grafana" / "fleet.json"

_STRING = re.compile(r'"[^"]*"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}")
_NAME = re.compile(r"(?<![\w:.$])([a-zA-Z_:][\w:]*+)(?!\s*\()")
_WORDS = {"and", "or", "unless", "bool", "offset", "e", "Inf", "NaN"}


def metric_names(expression: str) -> set[str]:
    """The metrics that a PromQL expression reads: what is left without strings, labels, ranges and functions."""
    bare = _STRING.sub('""', expression)
    bare = _GROUPING.sub(" ", bare)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", bare)
    return set(_NAME.findall(bare)) - _WORDS


def labels_used(expression: str) -> Iterator[tuple[str, set[str]]]:
    """(metric, labels it is filtered by) of every selector with braces."""
    for metric, matchers in _SELECTOR.findall(_STRING.sub('""', expression)):
        yield metric, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))


def rules(file: str) -> list[dict[str, Any]]:
    content = yaml.safe_load((PROMETHEUS / file).read_text())
    return [rule for group in content["groups"] for rule in group["rules"]]


def recorded() -> set[str]:
    return {rule["record"] for rule in rules("recording_rules.yml")}


def dashboard() -> dict[str, Any]:
    return dict(json.loads(DASHBOARD.read_text()))


def dashboard_queries() -> list[str]:
    board = dashboard()
    panels = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    return panels + [annotation["expr"] for annotation in board["annotations"]["list"]]


def scrape() -> set[str]:
    """The names of all samples of a fleet that has served requests and is in a rollout."""
    tally = PathTally(accepted_at={0: 1})
    replica = ReplicaReport("speculative", "r", 1, 0, 0, 0, 1, 0, 0)
    rollout = RolloutSnapshot("baking", 5.0, 5.0, [GuardrailSnapshot("itl_p95", 0, 1.0, 20.0)])
    text = render(
        Snapshot(
            "m",
            [PathSnapshot("speculative", tally, [replica], 1, 0, 0)],
            rollout,
            evidence_stale={"fleet": False},
            webhook_failures={"ops": 0},
        )
    ).decode()
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


SCRAPED = {name: family for family in FAMILIES.values() for name in family.scraped_names}
EXPRESSIONS = [rule["expr"] for file in ("recording_rules.yml", "alert_rules.yml") for rule in rules(file)]


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ('sum by (le, path) (rate(a:b_bucket{x="y z"}[1m])) / (c_total > 0)', {"a:b_bucket", "c_total"}),
        ("1 + a / on (path) group_left () b", {"a", "b"}),
        ('max(a{state="rolled_back"}) == 1 and on () (b > 1e3)', {"a", "b"}),
        ("histogram_quantile(0.95, rate(a[$__rate_interval]))", {"a"}),
    ],
)
def test_the_reading_of_promql_finds_the_metrics_and_nothing_else(expression: str, names: set[str]) -> None:
    assert metric_names(expression) == names


@pytest.mark.parametrize("expression", sorted({*EXPRESSIONS, *dashboard_queries()}))
def test_every_query_reads_metrics_that_exist_by_labels_that_they_have(expression: str) -> None:
    names = metric_names(expression)
    assert names
    assert names <= {*SCRAPED, *recorded(), "up"}
    for metric, labels in labels_used(expression):
        if metric in SCRAPED:
            assert labels <= {*SCRAPED[metric].all_labels, "le"}


def test_every_metric_that_is_read_has_samples_in_a_scrape() -> None:
    read = {name for expression in (*EXPRESSIONS, *dashboard_queries()) for name in metric_names(expression)}
    assert read - recorded() - {"up"} <= scrape()


def test_every_recording_rule_keeps_model_and_path() -> None:
    for rule in rules("recording_rules.yml"):
        assert "model_name, path)" in rule["expr"]
        assert rule["record"].startswith("path:")


def test_every_alert_has_a_severity_a_summary_and_an_entry_in_the_manual() -> None:
    manual = (ROOT / "docs" / "monitoring.md").read_text()
    alerts = rules("alert_rules.yml")
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    for rule in alerts:
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert rule["annotations"]["summary"]
        assert f"`{rule['alert']}`" in manual
    assert set(re.findall(r"^\| `(Fleet\w+)`", manual, re.MULTILINE)) == {rule["alert"] for rule in alerts}


def test_the_committed_dashboard_is_the_one_that_the_panels_make() -> None:
    assert DASHBOARD.read_text() == render_dashboard()


def test_the_dashboard_asks_for_its_data_source_and_every_panel_of_a_path_heeds_the_variables() -> None:
    board = dashboard()
    assert [item["name"] for item in board["templating"]["list"]] == ["datasource", "model", "path"]
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
            for name in metric_names(target["expr"]):
                if SCRAPED[name].is_of_path:
                    assert f"{name}{{{OF_PATH}" in target["expr"]


def test_no_two_panels_overlap_and_all_lie_on_the_grid() -> None:
    taken = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells
        assert all(0 <= x < 24 for x, _ in cells)
        taken |= cells


def test_prometheus_scrapes_the_public_port_once() -> None:
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "fleet"
    assert [target for group in job["static_configs"] for target in group["targets"]] == ["127.0.0.1:8000"]


@pytest.mark.parametrize(
    "arguments", [("check", "config", "prometheus.yml"), ("test", "rules", "rules_test.yml")], ids=" ".join
)
def test_promtool_accepts_the_files(arguments: tuple[str, ...]) -> None:
    beside_python = ROOT / ".venv" / "bin" / "promtool"
    promtool = str(beside_python) if beside_python.exists() else shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; `make .venv/bin/promtool` fetches it")
    done = subprocess.run([promtool, *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
