"""The matrix against the real router: what one says of a request the other must read."""

from pathlib import Path

import pytest

from deploy.evidence.block_driver import BlockDriver
from deploy.evidence.matrix import Inputs, lay_out, levels, schedule
from deploy.evidence.measured import MeasuredBlock
from deploy.evidence.run import check_paths, clients_of
from fleet.clock import SystemClock
from fleet.config import RouterConfig
from fleet.errors import ConfigError
from fleet.tokenizer import Tokenizer
from fleet.traffic import Outcome
from router.http_api import build_app
from router.intake import ServedModel
from tests.deploy.evidence.bench import PROMPTS, NoProbe, config_of
from tests.fakes import FakeBackend, FakeControl
from tests.router.served import Router, dispatcher_over
from tests.tiny import tiny_tokenizer_folder

TOKENS = 8


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    return Tokenizer.load(tiny_tokenizer_folder(folder))


@pytest.fixture
def router(tokenizer: Tokenizer) -> Router:
    backend, control, clock = FakeBackend(bursts={"speculative": 3}), FakeControl(), SystemClock()
    dispatcher = dispatcher_over(backend, clock)
    model = ServedModel("tiny", "/models/tiny", max_model_len=4096, created=0)
    return Router(build_app(dispatcher, tokenizer, control, model, RouterConfig()), dispatcher, backend, control, clock)


async def test_a_block_reads_tokens_acceptance_and_equal_answers_from_the_router(router: Router) -> None:
    config = config_of(
        load={"concurrency": [2]}, rounds=1, sampling={"greedy": {"temperature": 0}}, workload={"max_tokens": TOKENS}
    )
    blocks: dict[str, MeasuredBlock] = {}
    async with router.http() as http:
        assert await check_paths(config, http, SystemClock(), None) == "tiny"
        clients = clients_of(config, http, SystemClock(), model="tiny", key=None)
        driver = BlockDriver(clients, NoProbe(), SystemClock())
        for block in schedule(config, levels(config)):
            blocks[block.arm.name] = await driver.run(lay_out(config, Inputs(PROMPTS), block))
    assert set(router.backend.paths_used()) == {"baseline", "speculative"}
    for block in blocks.values():
        assert {request.outcome for request in block.requests} == {Outcome.DONE}
        assert {request.output_tokens for request in block.requests} == {TOKENS}
        assert all(request.queue_seconds is not None for request in block.requests)
    plain, speculative = (blocks[name].requests for name in ("baseline", "speculative"))
    assert [request.answer_digest for request in plain] == [request.answer_digest for request in speculative]
    assert {request.drafted for request in plain} == {0}
    # Eight tokens in bursts of three: rounds of 2, 2 and 1 accepted tokens, four drafted in each.
    assert {(request.drafted, request.accepted, request.rounds_by_accepted) for request in speculative} == {
        (12, 5, (0, 1, 2, 0, 0))
    }


async def test_a_path_that_the_router_does_not_know_is_refused_before_anything_is_measured(router: Router) -> None:
    config = config_of(candidates=["nowhere"])
    async with router.http() as http:
        with pytest.raises(ConfigError, match="nowhere"):
            await check_paths(config, http, SystemClock(), None)
