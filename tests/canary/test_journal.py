from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from canary.events import OperatorPaused, RolloutStarted
from canary.journal import Entry, Journal, JournalTaken
from canary.memory import NAMES, Memory
from canary.rollout import advance
from canary.rollout_state import begin
from fleet.errors import ConfigError, InvalidTransition, Unavailable
from tests.canary.events_strategy import histories, starts
from tests.canary.killed import live, on_commit, small_world
from tests.canary.world import plan

KILLED_AT = (4, 40)


def entries_of(start, history) -> list[Entry]:
    rollout, at = begin(start), 0.0
    found = [Entry(1e9, start, rollout, "started")]
    for pause, event in history:
        at += pause
        event = replace(event, at=at)
        try:
            following, _ = advance(rollout, event)
        except InvalidTransition:
            continue
        if following is not rollout:
            found.append(Entry(1e9 + at, event, following, event.verb))
            rollout = following
    return found


@settings(max_examples=15, deadline=None)
@given(starts, histories)
def test_replaying_what_was_written_gives_the_same_rollout_bit_for_bit(tmp_path_factory, start, history):
    path = tmp_path_factory.mktemp("journal") / "journal.sqlite3"
    journal = Journal.open(path)
    entries = entries_of(start, history)
    journal.commit(entries, {})
    journal.close()
    again = Journal.open(path)
    assert again.replay("speculative-1") == entries[-1].after
    again.close()


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> dict[str, Path]:
    """Journals of processes that died at some commit, just before and just after it."""
    folder = tmp_path_factory.mktemp("killed")
    points = [f"{number}-{side}" for number in KILLED_AT for side in ("before", "after")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.canary.killed", str(folder), *points]
    subprocess.run(command, check=True, env=environment, cwd=Path(__file__).parents[2], timeout=120)
    return {point: folder / point / "journal.sqlite3" for point in points}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[int, tuple]:
    """After every commit of a process that lives: the rollout, and clock, split, window, counters."""
    found: dict[int, tuple] = {}
    patch = pytest.MonkeyPatch()
    patch.setattr(Journal, "_write", Journal._write)
    patch.setattr(Journal, "commit", Journal.commit)
    world = small_world(tmp_path_factory.mktemp("undisturbed"))

    def note(number: int, is_durable: bool) -> None:
        if is_durable:
            desk = world.controller._desk
            found[number] = (desk.rollout, json.loads(json.dumps(desk.memory.values(NAMES))))

    on_commit(note)
    live(world)
    patch.undo()
    return found


@pytest.mark.parametrize("number", KILLED_AT)
@pytest.mark.parametrize("side", ["before", "after"])
def test_a_killed_controller_is_succeeded_with_the_same_rollout_clocks_and_evidence(killed, undisturbed, number, side):
    # The process that lives opened its journal before it was watched, which took it one commit.
    lived = number - 1 if side == "after" else number - 2
    journal = Journal.open(killed[f"{number}-{side}"])
    ids = journal.rollout_ids()
    rollout, values = undisturbed[lived]
    assert (journal.replay(ids[-1]) if ids else None) == rollout
    assert journal.values() == values
    assert Memory.recall(journal.values()).values(NAMES) == Memory.recall(values).values(NAMES)
    journal.close()


def test_events_can_be_neither_changed_nor_deleted(tmp_path):
    journal = Journal.open(tmp_path / "j")
    start = RolloutStarted(0.0, "speculative-1", plan())
    journal.commit([Entry(1.0, start, begin(start), "started")], {})
    connection = sqlite3.connect(tmp_path / "j")
    for statement in ("DELETE FROM events", "UPDATE events SET summary = 'nothing'"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute(statement)
    connection.close()
    journal.close()


def test_a_controller_whose_journal_was_taken_over_can_write_no_more(tmp_path):
    first = Journal.open(tmp_path / "j")
    first.commit([], {"clock": 1.0})
    second = Journal.open(tmp_path / "j")
    with pytest.raises(JournalTaken):
        first.commit([], {"clock": 2.0})
    assert second.values() == {"clock": 1.0}
    first.close()
    second.close()


def test_a_disk_that_refuses_costs_nothing_but_time(tmp_path):
    journal = Journal.open(tmp_path / "j")
    journal._connection.execute("PRAGMA max_page_count = 1")
    start = RolloutStarted(0.0, "speculative-1", plan())
    entry = Entry(1.0, start, begin(start), "x" * 100_000)
    with pytest.raises(Unavailable, match="cannot be written"):
        journal.commit([entry], {"clock": 1.0})
    assert journal.rollout_ids() == []
    journal._connection.execute("PRAGMA max_page_count = 1000000")
    journal.commit([entry], {"clock": 1.0})
    assert journal.rollout_ids() == ["speculative-1"]
    journal.close()


def test_a_journal_of_another_format_is_refused_in_one_line(tmp_path):
    connection = sqlite3.connect(tmp_path / "j")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(ConfigError, match="has format 99; this version writes format 1"):
        Journal.open(tmp_path / "j")


def test_a_place_where_nothing_can_be_written_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot open the journal"):
        Journal.open(tmp_path / "file" / "journal.sqlite3")


def test_history_leaves_out_windows_unless_asked(tmp_path):
    world = small_world(tmp_path)
    live(world)
    brief = world.command("history")["events"]
    full = world.command("history", windows=True)["events"]
    assert "WindowClosed" not in {entry["event"] for entry in brief}
    assert {"RolloutStarted", "WindowClosed", "SplitApplied", "OperatorPaused"} <= {entry["event"] for entry in full}
    assert [entry["id"] for entry in full] == sorted(entry["id"] for entry in full)
    assert world.command("history", limit=2)["events"] == brief[-2:]
    assert any(entry["event"] == OperatorPaused.__name__ and entry["state"] == "paused" for entry in brief)
    world.controller.close()
