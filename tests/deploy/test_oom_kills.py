"""Where the kernel counts the processes that it killed for want of memory."""

from __future__ import annotations

from pathlib import Path

from deploy.oom_kills import OomCounter, RecentKills, find_counter


def machine(root: Path, group: str, files: dict[str, str]) -> Path:
    base = {"proc/sys/kernel/random/boot_id": "b00t\n", "proc/self/cgroup": f"4:memory:/old\n0::/{group}\n"}
    for name, text in (base | files).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_control_group_counts_for_itself_and_is_not_taken_for_another(tmp_path: Path) -> None:
    events = {
        "sys/fs/cgroup/pod/memory.events": "low 0\noom 2\noom_kill 3\noom_group_kill 1\n",
        "proc/vmstat": "oom_kill 9",
    }
    one = find_counter(machine(tmp_path / "one", "pod", events))
    other = find_counter(machine(tmp_path / "other", "pod", events))
    assert one is not None
    assert other is not None
    assert one.read() == 3
    assert one.scope != other.scope


def test_without_one_the_machine_is_asked(tmp_path: Path) -> None:
    counter = find_counter(machine(tmp_path, "", {"proc/vmstat": "pgfault 5\noom_kill 7\n"}))
    assert counter == OomCounter("b00t", tmp_path / "proc/vmstat")
    assert counter.read() == 7


def test_a_system_that_does_not_count_has_no_counter_and_a_file_that_goes_has_seen_nothing(tmp_path: Path) -> None:
    assert find_counter(tmp_path) is None
    assert find_counter(machine(tmp_path, "", {})) is None
    assert OomCounter("b00t", tmp_path / "gone").read() == 0


def test_kills_are_recent_for_three_looks_and_only_where_they_are_counted(tmp_path: Path) -> None:
    counter = find_counter(machine(tmp_path, "", {"proc/vmstat": "oom_kill 7\n"}))
    assert counter is not None
    kills = RecentKills(counter)
    assert not kills.happened(counter.scope), "before the first look nothing is recent"
    kills.look()
    counter.file.write_text("oom_kill 8\n")
    assert kills.happened(counter.scope)
    assert not kills.happened("another machine")
    kills.look()
    kills.look()
    assert kills.happened(counter.scope)
    kills.look()
    assert not kills.happened(counter.scope)


def test_where_the_kernel_does_not_count_nothing_has_happened() -> None:
    kills = RecentKills(None)
    kills.look()
    assert not kills.happened("")
