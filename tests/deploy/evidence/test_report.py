import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from deploy.evidence.charts import charts, step_parts
from deploy.evidence.compare import compare, remarks, render_comparison
from deploy.evidence.measured import ServerFigures
from deploy.evidence.report import render_csv, render_html, render_table
from deploy.evidence.result import MatrixResult, Prediction, json_schema, read_result, to_json
from fleet.errors import ConfigError
from fleet.traffic import Outcome
from tests.deploy.evidence.bench import config_of, measure, open_file
from tests.deploy.evidence.simulated import SimulatedFleet, SimulatedPath, VirtualClock


def measured(folder: Path, seed: int, base: float) -> MatrixResult:
    clock = VirtualClock()
    speculative = SimulatedPath(base=base, noise=0.02, draft=4, acceptance=0.6)
    fleet = SimulatedFleet(clock, seed, baseline=SimulatedPath(noise=0.02), speculative=speculative)
    config = config_of(load={"concurrency": [1, 3]}, rounds=5, sampling={"greedy": {"temperature": 0}}, requests=3)
    return measure(config, fleet, clock, open_file(config, folder / f"{seed}.jsonl"))


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> MatrixResult:
    return measured(tmp_path_factory.mktemp("first"), 1, 0.03)


def figures(result: MatrixResult) -> dict[str, Any]:
    return {panel.id: panel.figure for chart in charts(result) for panel in chart.panels}


def shown(renderable: object) -> str:
    screen = io.StringIO()
    Console(width=200, file=screen).print(renderable)
    return screen.getvalue()


def test_a_report_is_read_again_as_it_was_written(tmp_path: Path, result: MatrixResult) -> None:
    (tmp_path / "report.json").write_text(to_json(result))
    assert read_result(tmp_path) == result
    assert read_result(tmp_path / "report.json") == result
    assert json.loads(to_json(result))["schema"] == 1


def test_the_schema_names_every_field_of_a_report(result: MatrixResult) -> None:
    schema = json_schema()
    assert set(schema["properties"]) == set(json.loads(to_json(result)))


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('{"schema": 1}')
    with pytest.raises(ConfigError, match="is no report"):
        read_result(tmp_path)
    with pytest.raises(ConfigError, match="cannot read"):
        read_result(tmp_path / "missing.json")


def test_the_html_needs_nothing_from_outside_and_shows_every_cell_and_chart(result: MatrixResult) -> None:
    page = render_html(result)
    script = page.index("<script>")
    head, body = page[:script], page[page.index("</head>") :]
    assert not re.search(r"(src|href)=", head + body)
    for cell in result.cells:
        assert body.count(cell.verdict.reason.replace("'", "&#39;")) >= 1
    for name in figures(result):
        assert f'id="{name}"' in body
    assert result.recommendation.replace("'", "&#39;") in body


def test_a_page_of_a_run_that_is_not_complete_promises_nothing(result: MatrixResult) -> None:
    promise, warning = "chance that any of them is false", "nothing is kept or dropped yet"
    assert promise in render_html(result)
    early = render_html(replace(result, rounds_done=2))
    assert warning in early
    assert promise not in early


def test_nothing_that_a_config_names_can_break_out_of_the_page(result: MatrixResult) -> None:
    nasty = "</script><script>alert(1)</script>"
    cells = tuple(replace(cell, candidate=nasty) for cell in result.cells)
    page = render_html(replace(result, cells=cells, model=nasty, url=nasty))
    assert "alert(1)</script>" not in page[page.index("</head>") :]
    assert nasty not in page


def test_the_charts_show_what_there_is_and_leave_out_what_there_is_not(result: MatrixResult) -> None:
    made = figures(result)
    latencies = {f"latency-{metric}-{number}" for metric in ("ttft", "tpot", "itl", "e2e") for number in (0, 1)}
    assert latencies | {"gain", "acceptance-position", "acceptance-slice"} == set(made)
    (line,) = made["gain"]["data"]
    assert line["x"] == [1, 3]
    assert line["y"] == [cell.verdict.gain.estimate for cell in result.cells if cell.verdict.gain]
    assert [curve["name"] for curve in made["latency-tpot-0"]["data"]] == ["baseline", "speculative"]


def test_the_csv_has_a_row_for_every_arm_and_condition(result: MatrixResult) -> None:
    rows = list(csv.DictReader(io.StringIO(render_csv(result))))
    assert [(row["condition"], row["arm"]) for row in rows] == [
        ("c1/greedy", "baseline"),
        ("c1/greedy", "speculative"),
        ("c3/greedy", "baseline"),
        ("c3/greedy", "speculative"),
    ]
    assert float(rows[1]["tpot_p50"]) < float(rows[0]["tpot_p50"])
    assert rows[0]["verdict"] == "" != rows[1]["verdict"]
    assert rows[1]["draft_seconds"] == rows[1]["memory_bytes"] == ""
    known = list(csv.DictReader(io.StringIO(render_csv(with_server_figures(result)))))
    parts = ("draft_seconds", "verify_seconds", "wire_seconds", "kv_usage", "memory_bytes", "preemptions")
    assert [float(known[1][part]) for part in parts] == [0.01, 0.03, 0.001, 0.5, 2**30, 0]
    assert sum(int(rows[1][outcome.value]) for outcome in Outcome) == int(rows[1]["requests"])


def test_a_report_without_a_cell_is_still_a_csv(result: MatrixResult) -> None:
    assert render_csv(replace(result, cells=())) == "condition,arm\n"


def test_the_html_tells_timeouts_and_what_a_forgetful_client_would_have_reported(result: MatrixResult) -> None:
    late = replace(
        result.cells[0],
        candidate_figures=replace(
            result.cells[0].candidate_figures, requests=40, outcomes={"done": 39, "timed_out": 1}
        ),
    )
    page = render_html(replace(result, cells=(late,)))
    table = page[page.index("<th>timed out</th>") :]
    assert "<th>request from sent</th>" in table
    assert "<td>2.5%</td>" in table
    spread = late.candidate_figures.e2e_from_sent
    assert spread is not None
    assert f"<td>{spread.p50 * 1000:.1f} / {spread.p95 * 1000:.1f}</td>" in table


def test_the_terminal_shows_each_verdict_and_the_recommendation(result: MatrixResult) -> None:
    text = shown(render_table(result))
    for cell in result.cells:
        assert cell.verdict.decision in text
    assert "speculative" in text


# --- comparing


def test_two_runs_of_the_same_differ_by_no_more_than_noise(tmp_path: Path, result: MatrixResult) -> None:
    comparison = compare(result, measured(tmp_path, 2, 0.03))
    assert [change.what for change in comparison.changes] == 2 * [
        *(f"gain in {metric}" for metric in ("ttft", "tpot", "e2e", "throughput")),
        "baseline",
        "candidate",
    ]
    assert not any(change.is_real(comparison.alpha) for change in comparison.changes)
    assert remarks(comparison)[-1] == "no gain changed by more than the noise between rounds"


def test_a_candidate_that_became_slower_is_told_from_noise(tmp_path: Path, result: MatrixResult) -> None:
    slower = measured(tmp_path, 3, 0.08)
    comparison = compare(result, slower)
    real = {change.what for change in comparison.changes if change.is_real(comparison.alpha)}
    assert {"gain in tpot", "gain in e2e", "gain in throughput"} <= real
    gains = [change for change in comparison.changes if change.what == "gain in tpot"]
    assert all(change.ratio < 0.6 for change in gains)
    assert "changed" in shown(render_comparison(comparison, result.objective))
    assert any(line.startswith("verdict on speculative, greedy at 1 open: ") for line in remarks(comparison))


def test_a_machine_that_became_slower_as_a_whole_is_no_change_of_a_path(result: MatrixResult) -> None:
    """Rounds of a run agree closely, so by their spread alone both arms would seem to have changed."""
    slower = replace(
        result,
        cells=tuple(
            replace(
                cell,
                rounds=tuple(
                    replace(
                        item,
                        baseline_objective=item.baseline_objective * 1.2,
                        candidate_objective=item.candidate_objective * 1.2,
                    )
                    for item in cell.rounds
                ),
            )
            for cell in result.cells
        ),
    )
    comparison = compare(result, slower)
    arms = [change for change in comparison.changes if change.what in ("baseline", "candidate")]
    assert all(change.ratio == pytest.approx(1.2) and change.p is None for change in arms)
    assert "no gain changed by more than the noise between rounds" in remarks(comparison)
    assert "the path or the machine" in shown(render_comparison(comparison, result.objective))


def test_a_comparison_names_what_changed_in_the_fleet_or_that_nobody_knows(result: MatrixResult) -> None:
    was, now = ({"baseline": {"engine.max_num_seqs": count}} for count in ("16", "32"))
    lines = remarks(compare(replace(result, fingerprints=was), replace(result, fingerprints=now)))
    assert "fleet: baseline: engine.max_num_seqs was 16, is 32" in lines
    lines = remarks(compare(result, replace(result, fingerprints=now)))
    assert "fleet: the first run does not say which fleet it measured" in lines


def test_cells_of_one_run_alone_and_other_settings_are_said(result: MatrixResult) -> None:
    part = replace(result, cells=result.cells[:1], config=result.config | {"seed": 9})
    lines = remarks(compare(result, part))
    assert "only in the first run: speculative, greedy at 3 open" in lines
    assert "the runs differ in their settings: seed" in lines


def test_runs_with_different_objectives_are_not_compared(result: MatrixResult) -> None:
    with pytest.raises(ConfigError, match="judged by"):
        compare(result, replace(result, objective="e2e"))


def test_every_chart_is_one_that_plotly_knows(result: MatrixResult) -> None:
    from plotly.graph_objects import Figure  # takes a second to import

    made = figures(with_server_figures(result))
    for figure in made.values():
        Figure(figure)  # raises on an unknown property or a value of the wrong kind
    assert {"kv", "memory", "step"} <= set(made)


def test_the_parts_of_a_step_add_up_to_draft_wire_and_the_whole_target_step(result: MatrixResult) -> None:
    parts = figures(with_server_figures(result))["step"]["data"]
    assert {part["name"]: part["y"][0] for part in parts} == pytest.approx(
        {"draft": 10.0, "wire": 1.0, "verify": 28.0, "accept": 2.0}
    )
    assert step_parts(ServerFigures(verify_seconds=0.03)) == {"draft": 0.0, "wire": 0.0, "verify": 0.03, "accept": 0.0}


def with_server_figures(result: MatrixResult) -> MatrixResult:
    known = ServerFigures(
        kv_usage=0.5,
        preemptions=0,
        draft_seconds=0.01,
        verify_seconds=0.03,
        wire_seconds=0.001,
        memory_bytes=2**30,
        accept_seconds=0.002,
        gpu_memory_bytes=3 * 2**30,
    )
    cells = tuple(
        replace(
            cell,
            baseline_figures=replace(cell.baseline_figures, server=known),
            candidate_figures=replace(cell.candidate_figures, server=known),
        )
        for cell in result.cells
    )
    return replace(result, cells=cells)


def test_the_page_tells_host_memory_from_that_of_gpus(result: MatrixResult) -> None:
    page = render_html(with_server_figures(result))
    body = page[page.index("<h2>Figures</h2>") :]
    assert "<th>host memory GiB</th><th>GPU memory GiB</th>" in body
    assert "<td>1.00</td><td>3.00</td></tr>" in body
    assert "<h2>Host memory</h2>" in body
    assert "<h2>Memory</h2>" not in body
    assert "<td>–</td><td>–</td></tr>" in render_html(result)


def test_the_predicted_curve_stands_beside_the_measured_one(result: MatrixResult) -> None:
    assert not [line for line in figures(result)["gain"]["data"] if "predicted" in line["name"]]
    predicted = replace(result, predictions=(Prediction("speculative", "c3/greedy", 1.2),))
    (line,) = [line for line in figures(predicted)["gain"]["data"] if "predicted" in line["name"]]
    assert (line["name"], line["x"], line["y"]) == ("speculative, greedy, predicted", [3], [1.2])
    assert "a prior" in note_of_gains(predicted)


def test_the_curve_by_measured_steps_is_dotted_and_where_there_is_none_the_page_says_why(result: MatrixResult) -> None:
    told = "Not reckoned from step times: speculative, because the server told no step times."
    assert told in note_of_gains(result)
    steps = replace(result, predictions=(Prediction("speculative", "c3/greedy", 1.3, "steps"),))
    _, line = figures(steps)["gain"]["data"]
    assert (line["name"], line["x"], line["y"]) == ("speculative, greedy, by its steps", [3], [1.3])
    assert line["line"]["dash"] == "dot"
    assert "Not reckoned" not in note_of_gains(steps)
    assert "a prior" not in note_of_gains(steps)


def note_of_gains(result: MatrixResult) -> str:
    return next(chart.note for chart in charts(result) if chart.panels[0].id == "gain")


def test_prefill_and_decode_are_never_mixed_in_one_number(result: MatrixResult) -> None:
    """The objective is one latency; TTFT stands beside it as a guard and in pictures of its own."""
    assert result.objective == "tpot"
    for cell in result.cells:
        assert {gain.metric for gain in cell.gains} >= {"ttft", "tpot"}
        assert [guard.name for guard in cell.verdict.guards].count("TTFT") == 1
    titles = [chart.title for chart in charts(result)]
    assert "Time to first token (prefill and queue)" in titles
    assert any(title.startswith("Time per output token (decode)") for title in titles)
