"""One tiny but real tokenizer, and a router around fake replicas."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.config import RouterConfig
from fleet.tokenizer import Tokenizer
from router.http_api import build_app
from router.intake import Intake, ServedModel
from tests.fakes import FakeBackend, FakeControl, ManualClock
from tests.router.served import Router, dispatcher_over
from tests.tiny import tiny_tokenizer_folder

MODEL = ServedModel("tiny", "/models/tiny", max_model_len=256, created=1_700_000_000)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    return Tokenizer.load(tiny_tokenizer_folder(folder))


@pytest.fixture(scope="session")
def intake(tokenizer: Tokenizer) -> Intake:
    return Intake(tokenizer, MODEL, draw_seed=lambda: 4711)


@pytest.fixture(scope="session")
def make_router(tokenizer: Tokenizer) -> Callable[..., Router]:
    """Builds a router over a fresh fake backend and controller; keyword arguments go to its config."""

    def make(**settings: object) -> Router:
        config = RouterConfig.model_validate(settings)
        backend, control, clock = FakeBackend(), FakeControl(), ManualClock()
        dispatcher = dispatcher_over(backend, clock, **settings)
        app = build_app(dispatcher, tokenizer, control, MODEL, config)
        return Router(app, dispatcher, backend, control, clock)

    return make
