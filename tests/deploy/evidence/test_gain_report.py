"""The gains in every metric, as the page and the CSV show them."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.evidence.gain_report import gain_rows, render_gain_csv
from deploy.evidence.matrix import LoadLevel
from deploy.evidence.measure import write_report
from deploy.evidence.report import render_html
from deploy.evidence.result import Gain, MatrixResult
from tests.deploy.evidence.bench import config_of, measure, open_file
from tests.deploy.evidence.simulated import SimulatedFleet, SimulatedPath, VirtualClock

Row = tuple[str, ...]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> MatrixResult:
    clock = VirtualClock()
    fleet = SimulatedFleet(clock, 2, baseline=SimulatedPath(), speculative=SimulatedPath(base=0.01))
    config = config_of(load={"concurrency": [1]}, rounds=5, requests=2, sampling={"greedy": {"temperature": 0}})
    return measure(config, fleet, clock, open_file(config, tmp_path_factory.mktemp("run") / "run.jsonl"))


def folded(page: str) -> dict[str, Row]:
    """The rows of the folded table by metric: mean, p50, p95."""
    page = page[page.index("</head>") :]
    table = page[page.index("<details>") : page.index("</details>")]
    rows = (re.findall(r"<td>(.*?)</td>", row) for row in table.split("<tr>"))
    return {row[1]: tuple(row[2:]) for row in rows if row}


def shown(gain: Gain) -> str:
    assert gain.interval is not None
    return f"{gain.estimate:.2f}× ({gain.interval[0]:.2f} – {gain.interval[1]:.2f})"


def test_the_page_has_every_metric_with_its_intervals_folded_away(result: MatrixResult) -> None:
    (cell,) = result.cells
    known = {(gain.metric, gain.statistic): gain for gain in cell.gains}
    rows = folded(render_html(result))
    assert list(rows) == ["TTFT", "TPOT", "ITL", "request", "throughput"]
    assert rows["TPOT"][:2] == (shown(known["tpot", "mean"]), shown(known["tpot", "p50"]))
    assert rows["ITL"][:2] == ("–", shown(known["itl", "p50"]))
    assert rows["throughput"] == (shown(known["throughput", "mean"]), "–", "–")


def test_a_95th_percentile_of_few_requests_has_no_interval(result: MatrixResult) -> None:
    """Ten requests of each arm are fewer than 200."""
    p95 = {gain.metric: gain for gain in result.cells[0].gains if gain.statistic == "p95"}
    rows = folded(render_html(result))
    assert {rows[label][2] for label in ("TTFT", "TPOT", "ITL", "request")} == {
        f"{gain.estimate:.2f}×" for gain in p95.values()
    }
    written = [row for row in csv.DictReader(io.StringIO(render_gain_csv(result))) if row["statistic"] == "p95"]
    assert len(written) == 4
    assert {(row["gain_low"], row["gain_high"]) for row in written} == {("", "")}


def test_the_csv_holds_every_gain_of_the_report(result: MatrixResult) -> None:
    rows = {(row["metric"], row["statistic"]): row for row in csv.DictReader(io.StringIO(render_gain_csv(result)))}
    gains = result.cells[0].gains
    assert set(rows) == {(gain.metric, gain.statistic) for gain in gains}
    assert {row["condition"] for row in rows.values()} == {"c1/greedy"}
    for gain in gains:
        row = rows[gain.metric, gain.statistic]
        assert float(row["gain"]) == gain.estimate
        if gain.interval:
            assert (float(row["gain_low"]), float(row["gain_high"])) == gain.interval


def test_of_an_open_loop_no_gain_in_throughput_is_shown(result: MatrixResult) -> None:
    opened = replace(result, cells=tuple(replace(c, level=LoadLevel("r2", rate_per_second=2.0)) for c in result.cells))
    assert "throughput" not in {row.metric for row in gain_rows(opened)}
    assert ",throughput," not in render_gain_csv(opened)


def test_a_cell_without_a_completed_pair_has_no_rows(result: MatrixResult) -> None:
    nothing = tuple(replace(gain, estimate=None, interval=None) for gain in result.cells[0].gains)
    empty = replace(result, cells=(replace(result.cells[0], gains=nothing),))
    assert list(gain_rows(empty)) == []
    assert render_gain_csv(empty).count("\n") == 1


def test_the_files_of_a_matrix_include_the_gains(tmp_path: Path, result: MatrixResult) -> None:
    write_report(result, tmp_path)
    assert (tmp_path / "gains.csv").read_text() == render_gain_csv(result)
