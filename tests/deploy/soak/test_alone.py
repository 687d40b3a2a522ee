"""The command's way: a proposer in a process of its own, which says what it found or why it could not."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.bench.soak.alone import LEAST_TURNS, soak_alone
from deploy.bench.soak.held import NOTHING
from fleet.config import ModelConfig, SpeculativeConfig
from fleet.errors import ConfigError
from tests.deploy.soak.test_pair import SMALL, settings_of

NGRAM = SpeculativeConfig(method="ngram", prompt_lookup_min=1, adaptive=False)


@pytest.mark.slow
def test_a_process_of_its_own_goes_as_many_turns_as_growth_takes_to_tell(tmp_path: Path) -> None:
    load = replace(SMALL, requests=8)
    soaked = soak_alone(settings_of(tmp_path, NGRAM), load, time.monotonic(), kills_draft=False)
    assert len(soaked.readings) == LEAST_TURNS
    assert soaked.requests == LEAST_TURNS * load.requests
    assert soaked.left == NOTHING


@pytest.mark.slow
def test_what_the_process_could_not_do_is_one_line(tmp_path: Path) -> None:
    settings = replace(settings_of(tmp_path, NGRAM), model=ModelConfig(model=str(tmp_path / "nowhere")))
    with pytest.raises(ConfigError, match="nowhere") as raised:
        soak_alone(settings, SMALL, time.monotonic(), kills_draft=False)
    assert "\n" not in str(raised.value)
