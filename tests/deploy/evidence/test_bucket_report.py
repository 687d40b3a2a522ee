import csv
import io
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console

from deploy.evidence.bootstrap import Interval
from deploy.evidence.bucket_report import bucket_map, render_bucket_csv
from deploy.evidence.compare import compare, remarks
from deploy.evidence.recommendation import losing_buckets, recommend
from deploy.evidence.report import render_html, render_table
from deploy.evidence.result import CellResult, MatrixResult, read_result, to_json
from deploy.evidence.verdicts import CellVerdict, Decision
from tests.deploy.evidence.bench import config_of, measure, open_file
from tests.deploy.evidence.simulated import SimulatedFleet, SimulatedPath, VirtualClock

SHORT, LONG = "prompt ≤256, output ≤32", "prompt ≤1024, output ≤32"
EXAMPLE = Path(__file__).parents[3] / "docs" / "example_matrix"


def verdict(decision: Decision) -> CellVerdict:
    return CellVerdict(decision, f"a reason to {decision}", Interval(1.2, 1.1, 1.3), 0.01, 1.0, ())


def judged(cell: CellResult, whole: Decision, **buckets: Decision) -> CellResult:
    """The cell with other verdicts, on itself and on its buckets."""
    first = next(part for part in cell.slices if part.kind == "bucket")
    names = {"short": SHORT, "long": LONG}
    parts = (replace(first, name=names[name], verdict=verdict(item)) for name, item in buckets.items())
    categories = (part for part in cell.slices if part.kind == "category")
    return replace(cell, verdict=verdict(whole), slices=(*parts, *categories))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> MatrixResult:
    clock = VirtualClock()
    fleet = SimulatedFleet(clock, 0, baseline=SimulatedPath(), speculative=SimulatedPath())
    config = config_of(load={"concurrency": [1, 2]}, rounds=1, requests=2, sampling={"greedy": {"temperature": 0}})
    return measure(config, fleet, clock, open_file(config, tmp_path_factory.mktemp("run") / "run.jsonl"))


@pytest.fixture(scope="module")
def result(plain: MatrixResult) -> MatrixResult:
    first, second = plain.cells
    cells = (
        judged(first, Decision.KEEP, long=Decision.DROP, short=Decision.KEEP),
        judged(second, Decision.INCONCLUSIVE, short=Decision.INCONCLUSIVE),
    )
    return replace(plain, cells=cells, rounds_done=plain.rounds_planned)


def test_the_map_has_a_row_for_each_cell_and_a_column_for_each_bucket_shortest_first(result: MatrixResult) -> None:
    shown = bucket_map(result)
    assert shown.buckets == (SHORT, LONG)
    (_, first), (_, second) = shown.rows
    assert [item and item.decision for item in first] == [Decision.KEEP, Decision.DROP]
    assert [item and item.decision for item in second] == [Decision.INCONCLUSIVE, None]


def test_the_page_shows_the_buckets_with_their_reasons_and_says_that_they_are_claims_of_their_own(
    result: MatrixResult,
) -> None:
    page = render_html(result)
    heading = page.index("Verdicts by length of prompt and answer")
    section = page[heading : page.index("<h2>Figures</h2>")]
    assert [section.count(f'class="verdict {decision}"') for decision in Decision] == [1, 1, 1, 0]
    assert "claims of their own" in section
    assert page.count("<b>drop</b>: a reason to drop") == 1
    early = render_html(replace(result, rounds_done=0, rounds_planned=5))
    assert "claims of their own" not in early


def test_the_csv_has_a_row_for_every_bucket_of_a_cell(result: MatrixResult) -> None:
    rows = list(csv.DictReader(io.StringIO(render_bucket_csv(result))))
    found = [(row["condition"], row["bucket"], row["verdict"]) for row in rows]
    assert found == [("c1/greedy", LONG, "drop"), ("c1/greedy", SHORT, "keep"), ("c2/greedy", SHORT, "inconclusive")]
    assert rows[0]["reason"] == "a reason to drop"
    assert [rows[0][name] for name in ("gain", "gain_low", "gain_high")] == ["1.2", "1.1", "1.3"]
    assert float(rows[0]["baseline_tpot"]) > 0


def test_the_only_bucket_of_a_cell_has_the_figures_of_its_arms(plain: MatrixResult) -> None:
    rows = list(csv.DictReader(io.StringIO(render_bucket_csv(plain))))
    for cell, row in zip(plain.cells, rows, strict=True):
        (part,) = (part for part in cell.slices if part.kind == "bucket")
        of_part = (part.baseline_figures, part.candidate_figures)
        of_cell = (cell.baseline_figures, cell.candidate_figures)
        for name, mine, whole in zip(("baseline", "candidate"), of_part, of_cell, strict=True):
            assert mine is not None
            assert asdict(mine) == {key: value for key, value in asdict(whole).items() if key in asdict(mine)}
            assert mine.itl is not None
            assert float(row[f"{name}_itl_p95"]) == mine.itl.p95
            assert (row[f"{name}_requests"], row[f"{name}_bad"]) == ("2", "0")


def test_the_page_shows_both_arms_of_every_part(plain: MatrixResult) -> None:
    part = plain.cells[0].slices[0]
    assert part.baseline_figures is not None
    assert part.candidate_figures is not None
    before, after = part.baseline_figures.ttft, part.candidate_figures.ttft
    assert before is not None
    assert after is not None
    shown = " → ".join(f"{arm.p50 * 1000:.1f} / {arm.p95 * 1000:.1f}" for arm in (before, after))
    assert f"<td>{shown}</td>" in render_html(plain)


def test_the_only_bucket_of_a_cell_that_is_judged_by_throughput_has_its_gain_in_throughput(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    fleet = SimulatedFleet(clock, 0, baseline=SimulatedPath(), speculative=SimulatedPath(prefill=0.02))
    config = config_of(load={"concurrency": [1]}, rounds=5, requests=2, judge={"objective": "throughput"})
    result = measure(config, fleet, clock, open_file(config, tmp_path / "run.jsonl"))
    for cell, row in zip(result.cells, csv.DictReader(io.StringIO(render_bucket_csv(result))), strict=True):
        assert cell.verdict.gain is not None
        assert float(row["gain"]) == cell.verdict.gain.estimate < 0.9
        assert float(row["candidate_tpot"]) == pytest.approx(float(row["baseline_tpot"]), rel=0.1)


def test_the_terminal_names_the_buckets_that_are_not_judged_as_their_cell(result: MatrixResult) -> None:
    screen = io.StringIO()
    Console(width=200, file=screen).print(render_table(result))
    assert LONG in screen.getvalue()
    assert SHORT not in screen.getvalue()


def test_a_comparison_names_the_bucket_whose_verdict_changed(plain: MatrixResult, result: MatrixResult) -> None:
    first, second = result.cells
    changed = judged(first, Decision.KEEP, short=Decision.KEEP, long=Decision.INCONCLUSIVE)
    lines = remarks(compare(result, replace(result, cells=(changed, second))))
    assert f"verdict on speculative, greedy at 1 open, {LONG}: drop → inconclusive" in lines
    assert not any(SHORT in line for line in lines)
    older = replace(plain, cells=tuple(replace(cell, slices=()) for cell in result.cells))
    assert not any(line.startswith("verdict") for line in remarks(compare(older, result)))


@pytest.mark.parametrize(
    ("whole", "short", "long", "told"),
    [
        (
            Decision.KEEP,
            Decision.KEEP,
            Decision.DROP,
            f"By length of prompt and answer: greedy at 1 open pays for ({SHORT}), costs for ({LONG}). "
            f"Roll speculative out, by a canary, except for ({LONG}) in greedy at 1 open, where it loses.",
        ),
        (
            Decision.DROP,
            Decision.KEEP,
            Decision.INCONCLUSIVE,
            f"greedy at 1 open pays for ({SHORT}), shows nothing either way for ({LONG}). Do not roll it out for all",
        ),
        (Decision.DROP, Decision.DROP, Decision.INCONCLUSIVE, f"costs for ({SHORT}), shows nothing"),
        (
            Decision.INCONCLUSIVE,
            Decision.DROP,
            Decision.DROP,
            f"greedy at 1 open costs for ({SHORT}) and ({LONG}). Stay",
        ),
    ],
)
def test_the_advice_says_for_which_lengths_it_pays_where_they_are_not_judged_as_their_cell(
    plain: MatrixResult, whole: Decision, short: Decision, long: Decision, told: str
) -> None:
    cell = judged(plain.cells[0], whole, short=short, long=long)
    assert told in recommend([cell], "tpot", 8, 8)


@pytest.mark.parametrize("decision", [Decision.KEEP, Decision.INCONCLUSIVE, Decision.REFUSED])
def test_the_advice_says_nothing_of_lengths_that_are_judged_as_their_cell(
    plain: MatrixResult, decision: Decision
) -> None:
    cell = judged(plain.cells[0], decision, short=decision, long=decision)
    assert "By length" not in recommend([cell], "tpot", 8, 8)


def test_a_report_from_before_buckets_were_judged_is_still_read_and_shown(tmp_path: Path, plain: MatrixResult) -> None:
    written = json.loads(to_json(plain))
    for cell in written["cells"]:
        for part in cell["slices"]:
            for newer in ("verdict", "baseline_figures", "candidate_figures"):
                del part[newer]
    (tmp_path / "report.json").write_text(json.dumps(written))
    old = read_result(tmp_path)
    assert bucket_map(old).rows == ()
    assert "Verdicts by length" not in render_html(old)
    assert render_bucket_csv(old).count("\n") == 1


def test_the_committed_example_is_still_read() -> None:
    assert read_result(EXAMPLE).cells


def test_where_it_pays_here_and_there_the_advice_names_the_lengths_for_which_it_loses_even_there(
    plain: MatrixResult,
) -> None:
    first, second = plain.cells
    kept = judged(first, Decision.KEEP, short=Decision.KEEP, long=Decision.DROP)
    lost = judged(second, Decision.DROP, short=Decision.DROP, long=Decision.DROP)
    assert losing_buckets([kept, lost]) == (f"({LONG}) in greedy at 1 open",)
    text = recommend([kept, lost], "tpot", 8, 8)
    assert text.endswith(f"the rest on the baseline. Even there it loses for ({LONG}) in greedy at 1 open.")
