"""The mix that a soak asks for."""

from __future__ import annotations

from itertools import islice

from deploy.bench.soak.errands import ANSWER_TOKENS, LATEST_LEAVING, Errand, errands

PROMPTS = [(3, 4, 5), (6,) * 50]


def some(count: int = 400) -> list[Errand]:
    return list(islice(errands(1, PROMPTS, 100), count))


def test_the_same_seed_asks_the_same() -> None:
    assert some(50) == some(50)


def test_every_way_that_a_request_can_take_is_in_it() -> None:
    mix = some()
    requests = [errand.request for errand in mix]
    leaving = [errand.leaves_after for errand in mix if errand.leaves_after is not None]
    assert len({request.request_id for request in requests}) == len(mix)
    assert set(leaving) == set(range(LATEST_LEAVING + 1))
    assert 0.15 < len(leaving) / len(mix) < 0.35
    assert {request.sampling.temperature for request in requests} >= {0.0, 0.8}
    assert {request.num_speculative_tokens for request in requests} == {None, 0, 1}
    refused = [request for request in requests if max(request.prompt_token_ids) >= 100]
    assert 0 < len(refused) < 0.1 * len(mix)
    assert {request.prompt_token_ids for request in requests} >= set(PROMPTS)
    lengths = {request.sampling.max_tokens for request in requests}
    assert {min(lengths), max(lengths)} == set(ANSWER_TOKENS)
