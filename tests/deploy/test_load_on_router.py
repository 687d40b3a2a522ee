"""The load driver against the real router: what one says of a request the other must read."""

from pathlib import Path

import pytest

from deploy.bench.load import LoadDriver
from deploy.bench.load_plan import LoadPlan
from deploy.bench.load_result import LoadResult, RequestRecord, summarise
from deploy.bench.prompts import Prompt
from fleet.config import RouterConfig
from fleet.errors import ReplicaLost
from fleet.tokenizer import Tokenizer
from fleet.traffic import Outcome
from router.http_api import build_app
from router.intake import ServedModel
from tests.fakes import FakeBackend, FakeControl, Fault, ManualClock, expected_text
from tests.router.served import Router, dispatcher_over
from tests.tiny import tiny_tokenizer_folder

PROMPTS = tuple(Prompt(f"p{number}", "chat", (f"Tell me about {number}.", "And then?")) for number in range(10))
TOKENS = 6


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    return Tokenizer.load(tiny_tokenizer_folder(folder))


@pytest.fixture
def router(tokenizer: Tokenizer) -> Router:
    backend, control, clock = FakeBackend(bursts={"speculative": 3}), FakeControl(), ManualClock()
    dispatcher = dispatcher_over(backend, clock)
    model = ServedModel("tiny", "/models/tiny", max_model_len=4096, created=0)
    return Router(build_app(dispatcher, tokenizer, control, model, RouterConfig()), dispatcher, backend, control, clock)


async def load(router: Router, **changes: int) -> LoadResult:
    sizes = {"requests": 40, "users": 20} | changes
    plan = LoadPlan("http://router", PROMPTS, concurrency=3, max_tokens=TOKENS, **sizes)
    async with router.http() as client:
        return await LoadDriver(plan, client, router.clock).run()


def assert_whole(records: tuple[RequestRecord, ...]) -> None:
    assert {record.outcome for record in records} == {Outcome.DONE}
    assert {record.output_tokens for record in records} == {TOKENS}


async def test_every_token_and_every_character_is_counted(router: Router) -> None:
    result = await load(router)
    assert_whole(result.records)
    assert {record.text for record in result.records} == {expected_text(seed, 0, TOKENS) for seed in range(40)}
    assert {record.path for record in result.records} == {"baseline"}
    assert all(record.tokens_per_chunk == 1.0 for record in result.records)


async def test_a_rising_weight_moves_users_to_the_canary_and_none_back(router: Router) -> None:
    records: list[RequestRecord] = []
    for percent in (0.0, 30.0, 60.0, 100.0):
        router.route(percent)
        router.clock.advance(1.0)
        records.extend((await load(router)).records)
    assert_whole(tuple(records))
    summary = summarise(LoadResult(tuple(records), 1.0))
    assert set(summary.moves) == {("baseline", "speculative")}
    assert summary.moves["baseline", "speculative"] == 20
    assert summary.paths["speculative"].acceptance == pytest.approx(0.5)


async def test_at_a_fixed_weight_nobody_moves(router: Router) -> None:
    router.route(50.0)
    result = await load(router, requests=60)
    assert set(summarise(result).paths) == {"baseline", "speculative"}
    assert summarise(result).moves == {}


async def test_a_canary_that_breaks_in_mid_stream_costs_no_text_and_shows_as_a_fallback(router: Router) -> None:
    router.route(100.0)
    router.backend.faults["speculative"] = Fault(after_tokens=3, error=ReplicaLost("gone"), times=1)
    result = await load(router, requests=4)
    assert_whole(result.records)
    assert {record.text for record in result.records} == {expected_text(seed, 0, TOKENS) for seed in range(4)}
    assert summarise(result).paths["speculative"].fallbacks == 1
