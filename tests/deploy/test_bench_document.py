from __future__ import annotations

from pathlib import Path

import pytest

from deploy.bench.document import replaced, write_into
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
