"""A local fleet is one at a time, and its end leaves no process behind but touches no other."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deploy.fleet_state import LOCK_FILE, FleetState, Phase, hold_lock, is_running, read_state, secret_file, write_state
from deploy.local_fleet import host_environment, stop
from deploy.processes import MARKER, end, end_all, members
from fleet.errors import Conflict

SLEEP = "import time; time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"


def state(folder: Path, pid: int = 0) -> FleetState:
    ray_folder = folder / "ray"
    ray_folder.mkdir()
    return FleetState(
        instance=f"test-{os.getpid()}-{folder.name}",
        pid=pid,
        url="http://127.0.0.1:1",
        model="tiny",
        admin_token="secret",
        ray_folder=str(ray_folder),
    )


def spawn(code: str, instance: str | None = None) -> subprocess.Popen[bytes]:
    environment = dict(os.environ) | ({MARKER: instance} if instance else {})
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    process = spawn(SLEEP)
    yield process
    process.kill()
    process.communicate()


def test_a_state_file_reads_back_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    written = state(tmp_path).model_copy(update={"phase": Phase.READY, "applications": {"router": "RUNNING"}})
    write_state(tmp_path, written)
    assert read_state(tmp_path) == written
    assert stat.S_IMODE((tmp_path / "fleet.json").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_broken_or_missing_state_file_is_no_state(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    (tmp_path / "fleet.json").write_text("{")
    assert read_state(tmp_path) is None


def test_a_secret_is_made_once_and_private(tmp_path: Path) -> None:
    secret = secret_file(tmp_path, "token").read_text()
    assert len(secret) >= 32
    assert secret_file(tmp_path, "token").read_text() == secret
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


def test_only_one_fleet_runs_in_a_folder_and_the_lock_goes_with_its_process(tmp_path: Path) -> None:
    with hold_lock(tmp_path) as lock:
        holder = subprocess.Popen([sys.executable, "-c", SLEEP], pass_fds=[lock])
    assert is_running(tmp_path)
    with pytest.raises(Conflict, match="already running"), hold_lock(tmp_path):
        pass
    holder.kill()
    holder.wait()
    assert not is_running(tmp_path)


def test_commands_that_look_at_the_same_moment_do_not_see_each_other_as_the_fleet(tmp_path: Path) -> None:
    tmp_path.joinpath(LOCK_FILE).touch()
    with tmp_path.joinpath(LOCK_FILE).open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert not is_running(tmp_path)


def test_members_are_the_marked_processes_and_their_children(tmp_path: Path, stranger: subprocess.Popen[bytes]) -> None:
    instance = state(tmp_path).instance
    # The child drops the marker, as Ray's processes do when they set their title.
    code = (
        "import subprocess, sys, os; del os.environ['" + MARKER + "'];"
        f"child = subprocess.Popen([sys.executable, '-c', {SLEEP!r}]); print(child.pid, flush=True); child.wait()"
    )
    parent = spawn(code, instance)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert {process.pid for process in members(instance)} == {parent.pid, child}
    end_all(instance)
    parent.communicate()
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
    assert stranger.poll() is None


def test_a_process_that_ignores_sigterm_is_killed() -> None:
    process = spawn(STUBBORN)
    assert process.stdout is not None
    process.stdout.readline()
    end([psutil.Process(process.pid)], grace_seconds=0.2)
    assert not psutil.pid_exists(process.pid)
    process.communicate()


def test_stopping_ends_a_hosts_processes_and_removes_its_temporary_folder(tmp_path: Path) -> None:
    described = state(tmp_path)
    host = spawn(SLEEP, described.instance)
    write_state(tmp_path, described.model_copy(update={"pid": host.pid}))
    stop(tmp_path)
    host.communicate()
    assert host.returncode is not None
    assert not (tmp_path / "ray").exists()


def test_a_foreign_process_with_the_hosts_old_pid_is_left_alone(
    tmp_path: Path, stranger: subprocess.Popen[bytes]
) -> None:
    write_state(tmp_path, state(tmp_path, stranger.pid))
    assert stop(tmp_path) is False
    assert stranger.poll() is None


def test_stopping_waits_for_the_lock_of_a_host_whose_last_threads_are_ending(tmp_path: Path) -> None:
    write_state(tmp_path, state(tmp_path))
    hold = f"import fcntl, time; f = open({str(tmp_path / LOCK_FILE)!r}, 'w'); fcntl.flock(f, fcntl.LOCK_EX)"
    ending = spawn(f"{hold}; print(flush=True); time.sleep(0.5)")
    assert ending.stdout is not None
    ending.stdout.readline()
    assert stop(tmp_path) is True
    assert not is_running(tmp_path)
    ending.communicate()


def test_stopping_where_nothing_ever_ran_says_so(tmp_path: Path) -> None:
    assert stop(tmp_path) is False


def test_a_fleets_ray_is_private(tmp_path: Path) -> None:
    environment = host_environment(state(tmp_path), tmp_path / "ray_token")
    assert environment["RAY_AUTH_MODE"] == "token"
    assert environment["RAY_SERVE_ENABLE_HA_PROXY"] == "1"
    own = [value for name, value in environment.items() if "HAPROXY" in name and value.startswith("/")]
    assert own
    assert all(value.startswith(str(tmp_path)) for value in own)
