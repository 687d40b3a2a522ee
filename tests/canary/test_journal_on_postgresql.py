"""The journal on a real PostgreSQL server: the same promises as on SQLite."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from hypothesis import given, settings

import canary.journal
from canary.journal import Journal, JournalTaken
from fleet.errors import ConfigError, Unavailable
from tests.canary.events_strategy import histories, starts
from tests.canary.killed import live, small_world
from tests.canary.postgres import Server, server
from tests.canary.test_journal import entries_of
from tests.canary.world import World

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="fleet-pg-") as folder, server(Path(folder)) as found:
        yield found


@pytest.fixture
def url(postgres: Server) -> str:
    """Of an empty database."""
    clean(postgres)
    return postgres.url


def clean(postgres: Server) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")


def world_on(url: str, folder: Path) -> World:
    world = small_world(folder)
    world.controller.close()
    world.journal = url
    world.controller = world.open()
    return world


def test_a_rollout_is_the_same_as_on_sqlite(url, tmp_path):
    (tmp_path / "a").mkdir()
    worlds = small_world(tmp_path / "a"), world_on(url, tmp_path)
    for world in worlds:
        live(world)
        world.restart()
    on_sqlite, on_postgresql = (world.command("export", limit=1000)["record"] for world in worlds)
    assert on_postgresql == on_sqlite
    first, second = (world.controller._desk for world in worlds)
    assert second.rollout == first.rollout
    assert second.memory.values(["served", "window", "split"]) == first.memory.values(["served", "window", "split"])
    assert worlds[1].command("list") == worlds[0].command("list")
    for world in worlds:
        world.controller.close()


@settings(max_examples=8, deadline=None)
@given(starts, histories)
def test_replaying_gives_the_same_rollout_bit_for_bit(postgres, start, history):
    clean(postgres)
    entries = entries_of(start, history)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canary.journal, "SNAPSHOT_EVENTS", 5)
        journal = Journal.open(postgres.url)
        journal.commit(entries[:3], {})
        journal.commit(entries[3:], {"clock": 0.1})
        journal.close()
    again = Journal.open(postgres.url)
    assert again.replay("speculative-1") == entries[-1].after
    assert again.last_event == len(entries)
    again.close()


@pytest.mark.parametrize("statement", ["DELETE FROM events", "UPDATE events SET summary = ''", "TRUNCATE events"])
def test_events_can_be_neither_changed_nor_deleted(url, statement):
    Journal.open(url).close()
    with psycopg.connect(url) as connection, pytest.raises(psycopg.errors.RaiseException, match="append-only"):
        connection.execute(statement)


def test_a_controller_whose_journal_was_taken_over_can_write_no_more(url):
    first = Journal.open(url)
    first.commit([], {"clock": 1.0})
    second = Journal.open(url)
    with pytest.raises(JournalTaken):
        first.commit([], {"clock": 2.0})
    assert second.values() == {"clock": 1.0}
    first.close()
    second.close()


def test_a_server_that_dies_costs_nothing_but_time(postgres, url, tmp_path):
    world = world_on(url, tmp_path)
    live(world)
    before = world.command("export", limit=1000)["record"]
    postgres.stop("immediate")
    world.clock.advance(1)
    with pytest.raises(Unavailable, match="the journal cannot be used"):
        world.command("abort", reason="nobody writes this down yet")
    with pytest.raises(Unavailable):
        world.command("history")
    postgres.start()
    world.controller.tick()
    after = world.command("export", limit=1000)["record"]
    assert after[: len(before)] == before
    assert [event["event"] for event in after[len(before) :]] == ["OperatorAborted"]
    world.restart()
    assert world.rollout["state"] == "aborted"
    world.controller.close()


def test_a_server_that_forgets_in_a_power_cut_is_refused(postgres, url):
    postgres.stop()
    postgres.start("fsync=off")
    try:
        with pytest.raises(ConfigError, match="fsync off"):
            Journal.open(url)
    finally:
        postgres.stop()
        postgres.start()


def test_commits_wait_for_the_disk_whatever_the_servers_default(postgres, url):
    postgres.stop()
    postgres.start("synchronous_commit=off")
    journal = Journal.open(url)
    with journal._store.transaction() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"
    journal.close()
    postgres.stop()
    postgres.start()


def test_the_url_may_be_a_secret_and_its_password_is_never_shown(postgres, url, tmp_path, monkeypatch):
    monkeypatch.setenv("JOURNAL_URL", url.replace("@", ":geheim@"))
    world = world_on("env:JOURNAL_URL", tmp_path)
    assert world.controller.status()["journal"].startswith("postgresql")
    assert "geheim" not in str(world.controller.status())
    world.controller.close()
