from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.bench.document import present, replaced, write_into
from fleet.errors import ConfigError

DOCUMENT = "# Head\n<!-- bench-x: begin -->\nold\n<!-- bench-x: end -->\ntail\n"


def test_a_table_goes_between_the_marks_of_its_name():
    wanted = "# Head\n<!-- bench-x: begin -->\n\nnew\n<!-- bench-x: end -->\ntail\n"
    assert replaced(DOCUMENT, "bench-x", "new") == wanted


def test_other_names_and_missing_files_are_said_in_one_line(tmp_path: Path):
    with pytest.raises(ConfigError, match="needs the lines <!-- bench-y: begin -->"):
        replaced(DOCUMENT, "bench-y", "new")
    with pytest.raises(ConfigError, match="cannot read"):
        write_into(tmp_path / "nowhere.md", "bench-x", "new")


@pytest.fixture
def signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("signals")
def test_a_benchmark_that_is_told_to_end_takes_down_what_it_has_started():
    ended = []

    def measured() -> Iterator[str]:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            yield "never"
        finally:
            ended.append("its draft process")

    with pytest.raises(SystemExit, match="stopped"):
        present(measured, None, "bench-x")
    assert ended == ["its draft process"]
