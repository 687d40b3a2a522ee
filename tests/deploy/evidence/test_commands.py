import json
import shlex
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from deploy.evidence import commands
from deploy.evidence import measure as measuring
from deploy.evidence.commands import ENDED_EARLY, STALE, app
from deploy.evidence.summary import renewal
from fleet.errors import ConfigError, Unauthorized
from tests.deploy.evidence.simulated import SimulatedFleet, SimulatedPath, VirtualClock

MATRIX = """
rounds: 1
requests: 2
pause_s: 0
sampling: {greedy: {temperature: 0}}
workload: {max_tokens: 4}
"""


class Slowly(SimulatedFleet):
    """The simulated fleet in real time, with steps of a millisecond; it goes away after so many requests."""

    def __init__(self, last: int = 1_000_000) -> None:
        fast = {name: SimulatedPath(base=0.001, slope=0.0, prefill=0.0) for name in ("baseline", "speculative")}
        super().__init__(VirtualClock(), 0, **fast)
        self._last = last

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if len(self.asked) >= self._last:
            raise httpx.ConnectError("connection refused")
        return await super().handle_async_request(request)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Let the command reach a fleet in this process instead of the network."""

    def use(fleet: httpx.AsyncBaseTransport) -> None:
        monkeypatch.setattr(
            measuring, "open_http", lambda url, timeout: httpx.AsyncClient(transport=fleet, base_url=url)
        )
        monkeypatch.setenv("FLEET_STATE", str(tmp_path / "no-state"))

    return use


def run(tmp_path: Path, *options: str) -> Any:
    file = tmp_path / "matrix.yaml"
    file.write_text(MATRIX)
    arguments = ["matrix", "-f", str(file), "-o", str(tmp_path / "out"), *options]
    return CliRunner().invoke(app, arguments)


def test_a_matrix_leaves_its_reports_and_a_second_call_measures_nothing_again(serve: Any, tmp_path: Path) -> None:
    fleet = Slowly()
    serve(fleet)
    first = run(tmp_path, "--concurrency", "2")
    assert first.exit_code == 0, first.output
    folder = tmp_path / "out"
    files = {"run.jsonl", "report.json", "report.csv", "buckets.csv", "gains.csv", "report.html", "matrix.yaml"}
    assert {file.name for file in folder.iterdir()} == files
    assert json.loads((folder / "report.json").read_text())["cells"][0]["condition"] == "c2/greedy"
    asked = len(fleet.asked)
    again = run(tmp_path, "--concurrency", "2")
    assert again.exit_code == 0
    assert len(fleet.asked) == asked + 2, "only the check of each path"


def test_a_server_that_goes_away_ends_the_run_with_a_report_of_what_there_is(serve: Any, tmp_path: Path) -> None:
    serve(Slowly(last=2 + 2 * 6))
    result = run(tmp_path, "--concurrency", "1", "--rounds", "4")
    assert result.exit_code == ENDED_EARLY
    assert "no longer answers" in result.output
    assert "goes on where it stopped" in result.output
    assert json.loads((tmp_path / "out" / "report.json").read_text())["rounds_planned"] == 4
    serve(Slowly())
    assert run(tmp_path, "--concurrency", "1", "--rounds", "4").exit_code == 0
    assert json.loads((tmp_path / "out" / "report.json").read_text())["rounds_done"] == 4


def test_another_matrix_does_not_go_into_the_same_folder(serve: Any, tmp_path: Path) -> None:
    serve(Slowly())
    run(tmp_path, "--concurrency", "1")
    second = run(tmp_path, "--concurrency", "1", "--seed", "5")
    assert isinstance(second.exception, ConfigError)
    assert "another matrix's measurements" in str(second.exception)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--rounds", "-1"], "rounds"),
        (["--rounds", "0"], "rounds"),
        (["--requests", "0"], "requests"),
        (["--max-tokens", "0"], "workload.max_tokens"),
        (["--rate", "-2"], "load.rate"),
        (["--candidate", "a", "--candidate", "a"], "named twice"),
        (["--concurrency", "2", "--concurrency", "2"], "named twice"),
        (["--prompts", "/nowhere"], "cannot read prompts"),
    ],
)
def test_a_wrong_option_is_one_clear_error(serve: Any, tmp_path: Path, options: list[str], complaint: str) -> None:
    serve(Slowly())
    result = run(tmp_path, *options)
    assert isinstance(result.exception, ConfigError)
    assert complaint in str(result.exception)


def test_two_folders_are_compared(serve: Any, tmp_path: Path) -> None:
    serve(Slowly())
    run(tmp_path, "--concurrency", "1")
    folder = str(tmp_path / "out")
    result = CliRunner().invoke(app, ["compare", folder, folder])
    assert result.exit_code == 0, result.output
    assert "the two runs have no cell with measured rounds in common" not in result.output
    assert "no gain changed" in result.output
    as_json = CliRunner().invoke(app, ["compare", folder, folder, "-o", "json"])
    assert json.loads(as_json.output)["verdicts"] == []


def test_the_pages_of_a_result_are_made_again_from_its_json(serve: Any, tmp_path: Path) -> None:
    serve(Slowly())
    run(tmp_path, "--concurrency", "1")
    made, again = tmp_path / "out", tmp_path / "new" / "folder"
    result = CliRunner().invoke(app, ["report", str(made / "report.json"), "-o", str(again)])
    assert result.exit_code == 0, result.output
    names = ("report.json", "report.csv", "buckets.csv", "gains.csv", "report.html", "matrix.yaml")
    assert all((again / name).read_bytes() == (made / name).read_bytes() for name in names)


def test_a_run_that_measured_nothing_still_ends_with_a_report_and_no_advice_to_roll_out(
    serve: Any, tmp_path: Path
) -> None:
    serve(Slowly(last=2))
    result = run(tmp_path, "--concurrency", "1")
    assert result.exit_code == ENDED_EARLY
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["cells"], report["rounds_done"]) == ([], 0)
    assert report["recommendation"].startswith("No advice yet: 0 of 1 rounds are measured")


@pytest.mark.parametrize("is_report_alone", [False, True])
def test_the_command_that_renews_runs_as_it_is_printed(serve: Any, tmp_path: Path, is_report_alone: bool) -> None:
    serve(Slowly())
    run(tmp_path, "--concurrency", "1", "--seed", "5")
    folder = tmp_path / "out"
    if is_report_alone:
        folder = tmp_path / "kept here"
        folder.mkdir()
        (tmp_path / "out" / "report.json").rename(folder / "report.json")
    program, group, *arguments = shlex.split(renewal(folder))
    assert (program, group) == ("fleet", "bench")
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    first, second = (json.loads((path / "report.json").read_text()) for path in (folder, Path(f"{folder}-2")))
    assert second["config"] == first["config"]


def test_a_json_file_that_is_no_report_is_one_clear_error(serve: Any, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text("{}")
    result = CliRunner().invoke(app, ["matrix", "-f", str(file), "-o", str(tmp_path / "out")])
    assert isinstance(result.exception, ConfigError)
    assert "is no report of `fleet bench matrix`" in str(result.exception)


class Admin:
    """A fleet whose replicas say what they are."""

    def __init__(self, max_num_seqs: str, *paths: str) -> None:
        self._parts = {"engine.max_num_seqs": max_num_seqs}
        self._paths = paths or ("baseline", "speculative")

    def __enter__(self) -> "Admin":
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def status(self) -> dict[str, Any]:
        return {"paths": [{"path": name, "fingerprint": self._parts} for name in self._paths]}


def test_a_matrix_knows_its_fleet_and_says_when_that_has_changed(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(Slowly())
    monkeypatch.setattr(measuring, "connect", lambda url, token: Admin("16"))
    assert run(tmp_path, "--concurrency", "1").exit_code == 0
    folder = str(tmp_path / "out")
    monkeypatch.setattr(commands, "connect", lambda url, token: Admin("16"))
    fresh = CliRunner().invoke(app, ["check", folder])
    assert (fresh.exit_code, "nothing has changed" in fresh.output) == (0, True)
    monkeypatch.setattr(commands, "connect", lambda url, token: Admin("32"))
    stale = CliRunner().invoke(app, ["check", folder])
    assert stale.exit_code == STALE
    assert "speculative: engine.max_num_seqs was 16, is 32" in stale.output
    assert f"renew it: fleet bench matrix -f {folder}/matrix.yaml -o {folder}-2" in stale.output
    monkeypatch.setattr(measuring, "connect", lambda url, token: Admin("32"))
    again = run(tmp_path, "--concurrency", "1")
    assert isinstance(again.exception, ConfigError)
    assert "a fleet that has changed since: baseline: engine.max_num_seqs was 16, is 32" in str(again.exception)


def unknown(url: str, token: str | None) -> Admin:
    raise Unauthorized("the admin API wants a token")


def test_a_run_on_a_known_fleet_does_not_go_on_where_nobody_says_which_fleet_it_is(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(Slowly(last=2 + 2 * 6))
    monkeypatch.setattr(measuring, "connect", lambda url, token: Admin("16"))
    assert run(tmp_path, "--concurrency", "1", "--rounds", "4").exit_code == ENDED_EARLY
    serve(Slowly())
    monkeypatch.setattr(measuring, "connect", unknown)
    again = run(tmp_path, "--concurrency", "1", "--rounds", "4")
    assert isinstance(again.exception, ConfigError)
    assert "now nothing says what path 'baseline' is: give the admin token" in str(again.exception)


def test_a_fleet_that_changes_while_it_is_measured_is_noticed_and_the_run_is_void_for_good(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(Slowly())
    seen = iter(["16", "32", "16"])
    monkeypatch.setattr(measuring, "connect", lambda url, token: Admin(next(seen)))
    for _ in range(2):  # that it is the first fleet again later on does not help
        result = run(tmp_path, "--concurrency", "1")
        assert isinstance(result.exception, ConfigError)
        assert "has changed since: baseline: engine.max_num_seqs was 16, is 32" in str(result.exception)
    assert not (tmp_path / "out" / "report.json").exists()


def test_a_report_claims_no_fleet_that_says_nothing_any_more_at_the_end(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(Slowly())
    seen = iter([Admin("16"), Admin("16", "baseline")])
    monkeypatch.setattr(measuring, "connect", lambda url, token: next(seen))
    assert run(tmp_path, "--concurrency", "1").exit_code == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert set(report["fingerprints"]) == {"baseline"}


def test_a_check_that_can_compare_nothing_is_an_error_and_one_of_a_part_says_so(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(Slowly())
    monkeypatch.setattr(measuring, "connect", lambda url, token: Admin("16"))
    run(tmp_path, "--concurrency", "1")
    folder = str(tmp_path / "out")
    monkeypatch.setattr(commands, "connect", lambda url, token: Admin("16", "other"))
    for options in ([], ["-o", "json"]):
        nothing = CliRunner().invoke(app, ["check", folder, *options])
        assert isinstance(nothing.exception, ConfigError)
        assert "nothing to compare with: baseline, speculative" in str(nothing.exception)
    monkeypatch.setattr(commands, "connect", lambda url, token: Admin("16", "baseline"))
    part = CliRunner().invoke(app, ["check", folder])
    assert part.exit_code == 0
    assert "speculative: not running, so nothing is known of it" in part.output
    assert "nothing has changed in what is running" in part.output


def test_a_seed_of_zero_overrides_the_files(serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(Slowly())
    monkeypatch.setattr("tests.deploy.evidence.test_commands.MATRIX", MATRIX + "seed: 7\n")
    assert run(tmp_path, "--concurrency", "1", "--seed", "0").exit_code == 0
    assert json.loads((tmp_path / "out" / "report.json").read_text())["config"]["seed"] == 0
