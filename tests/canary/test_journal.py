from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

import canary.journal
from canary import event_json
from canary.events import OperatorAborted, OperatorPaused, OperatorRetried, RolloutStarted
from canary.journal import Entry, Journal, JournalTaken
from canary.memory import NAMES, Memory
from canary.notices import notice_of
from canary.rollout import advance
from canary.rollout_state import begin
from canary.store import SNAPSHOTS, Store
from fleet.errors import ConfigError, InvalidTransition, Unavailable
from tests.canary.events_strategy import histories, starts
from tests.canary.killed import live, small_world, watched
from tests.canary.world import plan

FIRST_FORMAT = """
CREATE TABLE events (
    id INTEGER PRIMARY KEY, at REAL NOT NULL, rollout TEXT NOT NULL, attempt INTEGER NOT NULL, kind TEXT NOT NULL,
    body TEXT NOT NULL, state TEXT NOT NULL, weight REAL NOT NULL, summary TEXT NOT NULL
) STRICT;
CREATE INDEX events_of_rollout ON events (rollout, id);
CREATE TABLE state (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
PRAGMA user_version = 1;
"""
KILLED_AT = ("4-0", "4-COMMIT", "4-after", "40-1", "40-COMMIT", "40-after")


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
            notice = notice_of(rollout, following, event.verb, 1e9 + at)
            found.append(Entry(1e9 + at, event, following, event.verb, notice))
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
    """Journals of processes that were killed at some write."""
    folder = tmp_path_factory.mktemp("killed")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.canary.killed", str(folder), *KILLED_AT]
    subprocess.run(command, check=True, env=environment, cwd=Path(__file__).parents[2], timeout=120)
    return {point: folder / point / "journal.sqlite3" for point in KILLED_AT}


@dataclass
class Life:
    """What an undisturbed controller knew after each commit, and its files as they lay at every kind of write."""

    known: dict[int, tuple]
    """Commit -> rollout, and clock, split, window, counters."""
    files: dict[tuple[int, str], Path]
    """(commit, write point) -> a copy of the journal's files, for the first commit of every kind."""


@pytest.fixture(scope="module")
def life(tmp_path_factory) -> Life:
    folder, copies = tmp_path_factory.mktemp("undisturbed"), tmp_path_factory.mktemp("copies")
    found, kinds = Life({}, {}), set[frozenset[str]]()
    pending: list[tuple[str, Path]] = []

    def note(number: int, point: str) -> None:
        copy = copies / f"{number}-{point}"
        shutil.copytree(folder, copy)
        pending.append((point, copy / "journal.sqlite3"))
        if point != "after":
            return
        desk = world.controller._desk
        found.known[number] = (desk.rollout, json.loads(json.dumps(desk.memory.values(NAMES))))
        kind = frozenset(type(entry.event).__name__ for entry in desk._unwritten) | set(desk._changed)
        if kind not in kinds:
            kinds.add(kind)
            found.files |= {(number, at): path for at, path in pending}
        pending.clear()

    world = small_world(folder)
    found.known[0] = (None, json.loads(json.dumps(world.controller._desk.memory.values(NAMES))))
    with watched(note):
        live(world)
    world.controller.close()
    return found


def assert_left(journal_file: Path, known: tuple) -> None:
    """A successor finds exactly this rollout and these values."""
    journal = Journal.open(journal_file)
    ids = journal.chronicle.rollout_ids()
    rollout, values = known
    assert (journal.replay(ids[-1]) if ids else None) == rollout
    assert journal.values() == values
    assert Memory.recall(journal.values()).values(NAMES) == Memory.recall(values).values(NAMES)
    journal.close()


@pytest.mark.parametrize("point", KILLED_AT)
def test_a_killed_controller_is_succeeded_with_the_same_rollout_clocks_and_evidence(killed, life, point):
    number, _, side = point.partition("-")
    assert_left(killed[point], life.known[int(number) - (side != "after")])


def test_at_every_write_point_the_files_hold_the_commit_before_or_this_one_whole(life, tmp_path):
    assert len({number for number, _ in life.files}) >= 8
    for (number, point), journal_file in life.files.items():
        found = shutil.copytree(journal_file.parent, tmp_path / f"{number}-{point}")
        assert_left(found / "journal.sqlite3", life.known[number - (point != "after")])


def test_a_commit_of_which_the_disk_has_only_a_part_never_was(life, tmp_path):
    number, point = next((n, p) for n, p in reversed(life.files) if p == "after")
    whole = life.files[number, point].parent
    before = (life.files[number, "COMMIT"].parent / "journal.sqlite3-wal").stat().st_size
    written = (whole / "journal.sqlite3-wal").stat().st_size
    assert written > before
    for size in range(before, written, 1000):
        torn = tmp_path / str(size)
        shutil.copytree(whole, torn)
        os.truncate(torn / "journal.sqlite3-wal", size)
        (torn / "journal.sqlite3-shm").unlink()
        assert_left(torn / "journal.sqlite3", life.known[number - 1])


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


def limit_pages(journal: Journal, pages: int) -> None:
    with journal._store.transaction() as connection:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")


def test_a_disk_that_refuses_costs_nothing_but_time(tmp_path):
    journal = Journal.open(tmp_path / "j")
    limit_pages(journal, 1)
    start = RolloutStarted(0.0, "speculative-1", plan())
    entry = Entry(1.0, start, begin(start), "x" * 100_000)
    with pytest.raises(Unavailable, match="the journal cannot be used: database or disk is full"):
        journal.commit([entry], {"clock": 1.0})
    assert journal.chronicle.rollout_ids() == []
    limit_pages(journal, 1_000_000)
    journal.commit([entry], {"clock": 1.0})
    assert journal.chronicle.rollout_ids() == ["speculative-1"]
    journal.close()


def test_a_journal_of_another_format_is_refused_in_one_line(tmp_path):
    Journal.open(tmp_path / "j").close()
    with sqlite3.connect(tmp_path / "j") as connection:
        connection.execute("UPDATE state SET value = '99' WHERE name = 'format'")
    connection.close()
    with pytest.raises(ConfigError, match="has format 99; this version writes format 2"):
        Journal.open(tmp_path / "j")


def test_a_first_opening_that_is_killed_at_any_statement_is_simply_done_again(tmp_path):
    number = 0

    def copy(*_: object) -> None:
        nonlocal number
        number += 1
        shutil.copytree(tmp_path / "new", tmp_path / str(number))

    sa.event.listen(sa.Engine, "before_cursor_execute", copy)
    Journal.open(tmp_path / "new" / "j").close()
    sa.event.remove(sa.Engine, "before_cursor_execute", copy)
    assert number > 10
    for at in range(1, number + 1):
        journal = Journal.open(tmp_path / str(at) / "j")
        assert (journal.values(), journal.chronicle.rollout_ids()) == ({}, [])
        journal.close()


def test_a_journal_of_the_first_format_is_taken_on_as_it_is(tmp_path):
    connection = sqlite3.connect(tmp_path / "j")
    connection.executescript(FIRST_FORMAT)
    start = RolloutStarted(0.0, "speculative-1", plan())
    row = (1, 1.0, "speculative-1", 1, "RolloutStarted", event_json.written(start), "preparing", 0.0, "started")
    connection.execute("INSERT INTO events VALUES (?,?,?,?,?,?,?,?,?)", row)
    connection.execute("INSERT INTO state VALUES ('clock', '7.5')")
    connection.commit()
    connection.close()
    journal = Journal.open(tmp_path / "j")
    assert journal.replay("speculative-1") == begin(start)
    assert journal.values() == {"clock": 7.5}
    paused = entries_of(start, [(1.0, OperatorAborted(0.0, "enough"))])[1:]
    journal.commit(paused, {"clock": 8.0})
    assert journal.replay("speculative-1") == paused[-1].after
    journal.close()


@settings(max_examples=15, deadline=None)
@given(starts, histories, st.integers(1, 7))
def test_a_replay_from_a_snapshot_is_the_replay_from_the_first_event(tmp_path_factory, start, history, every):
    place = tmp_path_factory.mktemp("journal") / "j"
    entries = entries_of(start, history)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canary.journal, "SNAPSHOT_EVENTS", every)
        journal = Journal.open(place)
        for entry in entries:
            journal.commit([entry], {})
            assert journal.replay("speculative-1") == entry.after
    with_snapshot = journal.replay("speculative-1")
    with journal._store.transaction() as connection:
        kept = connection.execute(sa.select(SNAPSHOTS.c.id)).scalars().all()
        connection.execute(SNAPSHOTS.delete())
    assert kept == [len(entries) // every * every] or len(entries) < every
    assert journal.replay("speculative-1") == with_snapshot == entries[-1].after
    journal.close()


def test_a_snapshot_of_another_shape_is_no_longer_understood_and_not_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(canary.journal, "SNAPSHOT_EVENTS", 1)
    journal = Journal.open(tmp_path / "j")
    start = RolloutStarted(0.0, "speculative-1", plan())
    journal.commit([Entry(1.0, start, begin(start), "started")], {})
    with journal._store.transaction() as connection:
        connection.execute(SNAPSHOTS.update().values(shape="of yesterday", body="{}"))
    assert journal.replay("speculative-1") == begin(start)
    journal.close()


def test_a_commit_whose_answer_was_lost_counts_once_when_it_is_tried_again(tmp_path, monkeypatch):
    journal = Journal.open(tmp_path / "j")
    start = RolloutStarted(0.0, "speculative-1", plan())
    entries = entries_of(start, [(1.0, OperatorAborted(0.0, "enough")), (1.0, OperatorRetried(0.0))])
    with monkeypatch.context() as patch:
        patch.setattr(Store, "transaction", answers_lost(Store.transaction))
        with pytest.raises(Unavailable, match="connection lost"):
            journal.commit(entries[:2], {"clock": 1.0})
    journal.commit(entries, {"clock": 2.0})
    assert [item["event"] for item in journal.chronicle.export("speculative-1", after=0, limit=9)] == [
        "RolloutStarted",
        "OperatorAborted",
        "OperatorRetried",
    ]
    assert journal.replay("speculative-1") == entries[-1].after
    assert journal.values() == {"clock": 2.0}
    assert [notice.kind for _, notice in journal.notices(0, 9)] == ["abort"]
    assert (journal.last_event, journal.last_notice) == (3, 2)
    journal.close()


def answers_lost(transaction):
    """Commits, and then says that it did not."""

    @contextmanager
    def losing(self):
        with transaction(self) as connection:
            yield connection
        raise Unavailable("connection lost")

    return losing


def test_a_place_where_nothing_can_be_written_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot open the journal"):
        Journal.open(tmp_path / "file" / "journal.sqlite3")


def test_history_leaves_out_windows_that_changed_nothing_unless_asked(tmp_path):
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


def test_a_server_that_is_not_there_is_one_line_without_the_password():
    place = "postgresql://fleet:geheim@/journal?host=/nowhere"
    with pytest.raises(ConfigError, match=r"cannot open the journal postgresql.*://fleet:\*\*\*@") as refusal:
        Journal.open(place)
    assert "geheim" not in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("place", "complaint"),
    [
        ("mysql://host/db", "'mysql' is not supported; give a path or a postgresql:// URL"),
        ("postgresql://host:port/db", "this is no URL"),
    ],
)
def test_other_urls_are_refused_in_one_line(place, complaint):
    with pytest.raises(ConfigError, match=complaint):
        Journal.open(place)
