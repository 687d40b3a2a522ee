"""Whatever runs beside a request, drafts for it or interrupts it: the answer is the slow twin's."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from deploy.bench.growth import container_sizes
from fleet.errors import OutOfMemory
from fleet.generation import FailureKind, FinishReason, GenerationRequest, Resume, SamplingParams
from replicas.engine.model import Forward, Model, load_model
from replicas.engine.packing import Segment
from replicas.engine.sampling import Draw, Sample, Sampler
from replicas.engine.speculator import Speculator
from replicas.speculation.messages import FINISHED, Closing
from replicas.speculation.ngram import NgramProposer
from replicas.speculation.proposer import Proposer
from tests.fake_model import FakeModel
from tests.replicas.engine.requests import GREEDY, mixed_requests, request
from tests.replicas.engine.rig import (
    OWNER,
    BranchingProposer,
    KnowingProposer,
    LyingProposer,
    Rig,
    Twin,
    fake_twin,
    slow_twin,
)
from tests.tiny import VOCABULARY
from tests.tiny_models import tiny_model_folder

REQUESTS = mixed_requests()


def proposer_named(name: str, requests: list[GenerationRequest], twin: Twin = fake_twin) -> Proposer | None:
    match name:
        case "knowing":
            return KnowingProposer(requests, twin)
        case "erring":
            return KnowingProposer(requests, twin, error_rate=0.3)
        case "lying":
            return LyingProposer()
        case "branching":
            return BranchingProposer(requests, twin)
        case "ngram":
            return NgramProposer(1, 3)
    return None


def assert_twins(rig: Rig, requests: list[GenerationRequest], twin: Twin = fake_twin) -> None:
    for each in requests:
        result, expected = rig.results[each.request_id], twin(each)
        assert result.answer() == expected.answer(), each.request_id
        assert len(result.logprobs) == len(expected.logprobs)
        for mine, theirs in zip(result.logprobs, expected.logprobs, strict=True):
            assert mine.token_id == theirs.token_id
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-3)


@pytest.mark.parametrize("proposer", ["none", "knowing", "erring", "lying", "branching", "ngram"])
@pytest.mark.parametrize(
    "engine",
    [
        {},
        {"max_num_batched_tokens": 16, "max_num_seqs": 3},
        {"max_num_batched_tokens": 16, "max_num_seqs": 64},
    ],
    ids=["roomy", "few-sequences", "small-steps"],
)
def test_every_feature_gives_the_twins_answer(proposer: str, engine: dict[str, int]) -> None:
    model = FakeModel()
    rig = Rig(model, proposer=proposer_named(proposer, REQUESTS), **engine)
    rig.run(*REQUESTS)
    assert model.largest_step <= engine.get("max_num_batched_tokens", 256)
    assert_twins(rig, REQUESTS)


@pytest.mark.parametrize("proposer", ["none", "erring", "lying", "branching"])
@pytest.mark.parametrize("kv_tokens", [90, 130, 200])
def test_preemption_changes_no_token(proposer: str, kv_tokens: int) -> None:
    model = FakeModel(kv_tokens=kv_tokens)
    requests = [request(f"r{i}", replace(GREEDY, max_tokens=60, ignore_eos=True), prompt_length=9) for i in range(6)]
    rig = Rig(model, proposer=proposer_named(proposer, requests))
    rig.run(*requests)
    assert rig.engine.stats.preemptions > 0
    assert_twins(rig, requests)


def test_steps_with_a_prompt_are_not_timed_as_decoding() -> None:
    rig = Rig(max_num_batched_tokens=16)
    rig.run(request("r0", replace(GREEDY, max_tokens=5, ignore_eos=True), prompt_length=40))
    assert rig.engine.stats.decoding_steps == 4, "the first of the five tokens comes with the prompt's last piece"


def test_a_step_that_was_recorded_is_not_taken_for_the_cost_of_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request("r0", replace(GREEDY, max_tokens=9, ignore_eos=True), prompt_length=10)
    rig = Rig(proposer=proposer_named("knowing", [asked]))
    forward = rig.model.forward
    learned: list[float] = []
    passes = count()

    def pausing_forward(segments: Sequence[Segment]) -> Forward:
        was_recorded = next(passes) == 1
        rig.clock.advance(2.0 if was_recorded else 0.030)
        return replace(forward(segments), was_recorded=was_recorded)

    monkeypatch.setattr(rig.model, "forward", pausing_forward)
    monkeypatch.setattr(Speculator, "observe_decoding", lambda self, rows, seconds: learned.append(seconds))
    rig.run(asked)
    steps = next(passes) - 2  # the prompt's, and the one that was recorded
    assert steps > 0
    assert learned == pytest.approx([0.030] * steps)
    stats = rig.engine.stats
    assert stats.decoding_steps == steps
    assert stats.decoding_seconds == pytest.approx(0.030 * steps)


def test_what_follows_the_forward_pass_is_timed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    forward, sample = rig.model.forward, Sampler.sample

    def slow_forward(segments: Sequence[Segment]) -> Forward:
        rig.clock.advance(0.030)
        return forward(segments)

    def slow_sample(self: Sampler, logits: Tensor, draws: Sequence[Draw]) -> list[Sample]:
        rig.clock.advance(0.002)
        return sample(self, logits, draws)

    monkeypatch.setattr(rig.model, "forward", slow_forward)
    monkeypatch.setattr(Sampler, "sample", slow_sample)
    rig.run(request("r0", replace(GREEDY, max_tokens=5, ignore_eos=True), prompt_length=10))
    stats = rig.engine.stats
    assert stats.decoding_seconds == pytest.approx(4 * 0.032)
    assert stats.accepting_seconds == pytest.approx(4 * 0.002)


@pytest.fixture(scope="module")
def real_model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tiny_model_folder(tmp_path_factory.mktemp("tiny") / "model")
    return load_model(folder, dtype="float32", device="cpu", kv_tokens=800)


@pytest.fixture(scope="module")
def real_twin(real_model: Model) -> Twin:
    return functools.cache(functools.partial(slow_twin, real_model))


@pytest.mark.parametrize("proposer", ["none", "erring", "lying", "branching", "ngram"])
def test_a_real_model_in_float32_gives_the_twins_answer(real_model: Model, real_twin: Twin, proposer: str) -> None:
    requests = [each for each in REQUESTS if each.sampling.max_tokens <= 20]
    rig = Rig(real_model, proposer=proposer_named(proposer, requests, real_twin), max_num_batched_tokens=32)
    rig.run(*requests)
    assert_twins(rig, requests, real_twin)


events = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(0, len(REQUESTS) - 1)),
        st.tuples(st.just("cancel"), st.integers(0, 5)),
        st.tuples(st.just("steps"), st.integers(1, 6)),
    ),
    max_size=40,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(events, st.booleans(), st.integers(100, 300))
def test_neighbours_that_come_and_go_change_nothing_and_leave_nothing(
    history: list[tuple[str, int]], lies: bool, kv_tokens: int
) -> None:
    rig = Rig(FakeModel(kv_tokens=kv_tokens), proposer=LyingProposer() if lies else None, max_num_batched_tokens=24)
    submitted: dict[str, GenerationRequest] = {}
    cancelled: set[str] = set()
    for number, (event, argument) in enumerate(history):
        if event == "submit":
            each = replace(REQUESTS[argument], request_id=f"{number}")
            submitted[each.request_id] = each
            rig.submit(each)
        elif event == "cancel" and submitted:
            name = list(submitted)[argument % len(submitted)]
            cancelled |= set() if rig.results[name].has_ended else {name}
            rig.engine.cancel(OWNER, [name])
        elif event == "steps":
            for _ in range(argument):
                rig.step()
    rig.run()
    assert_twins(rig, [each for name, each in submitted.items() if name not in cancelled])
    assert not any(rig.results[name].has_ended for name in cancelled)


def test_a_perfect_draft_is_accepted_whole_and_the_rounds_are_counted() -> None:
    sampling = replace(GREEDY, max_tokens=21, ignore_eos=True)
    rig = Rig(proposer=KnowingProposer([request("a", sampling)], fake_twin))
    chunks = rig.run(request("a", sampling))["a"].chunks
    assert [len(chunk.token_ids) for chunk in chunks] == [1, 5, 5, 5, 5]
    assert chunks[0].round is None
    assert all(chunk.round and (chunk.round.drafted, chunk.round.accepted) == (4, 4) for chunk in chunks[1:])


class RememberingProposer(KnowingProposer):
    """Keeps what it knows of the answers that came to their own end."""

    def __init__(self, requests: list[GenerationRequest]) -> None:
        super().__init__(requests, fake_twin, error_rate=0.3)
        self.remembered: list[tuple[SamplingParams, list[int]]] = []

    def close(self, closing: Closing) -> None:
        for sequence_id in closing.sequence_ids if closing.reason == FINISHED else ():
            sampling, (_, known) = self.prompts[sequence_id].sampling, self.open_ids[sequence_id]
            self.remembered.append((sampling, [*known, *closing.last_committed[sequence_id]]))
        super().close(closing)


@pytest.mark.parametrize("kv_tokens", [4096, 130], ids=["roomy", "preempting"])
def test_a_proposer_knows_every_answer_whole_when_it_has_ended(kv_tokens: int) -> None:
    requests = [each for each in REQUESTS if fake_twin(each).token_ids[1:]]
    proposer = RememberingProposer(requests)
    Rig(FakeModel(kv_tokens=kv_tokens), proposer=proposer).run(*requests)
    answers = [(each.sampling, [*each.prompt_token_ids, *fake_twin(each).token_ids]) for each in requests]
    assert sorted(proposer.remembered, key=repr) == sorted(answers, key=repr)


def test_no_draft_is_longer_than_what_remains() -> None:
    sampling = replace(GREEDY, max_tokens=4, ignore_eos=True)
    rig = Rig(proposer=KnowingProposer([request("a", sampling)], fake_twin))
    chunks = rig.run(request("a", sampling))["a"].chunks
    assert [chunk.round and chunk.round.drafted for chunk in chunks] == [None, 2]


def test_a_missing_proposal_is_a_late_round_only_where_one_is_owed() -> None:
    class Silent(LyingProposer):
        def guess(self, want: object) -> None:
            return None

    for must_answer in (True, False):
        rig = Rig(proposer=Silent(), must_answer=must_answer)
        chunks = rig.run(request("a"))["a"].chunks
        assert [chunk.round and chunk.round.late for chunk in chunks[1:-2]] == [must_answer] * (len(chunks) - 3)
        assert all(chunk.round is None or chunk.round.drafted == 0 for chunk in chunks)


def test_a_request_may_switch_speculation_off_or_shorten_it() -> None:
    requests = [replace(request(f"n{n}"), num_speculative_tokens=n) for n in (0, 2)]
    rig = Rig(proposer=KnowingProposer(requests, fake_twin))
    results = rig.run(*requests)
    assert all(chunk.round is None for chunk in results["n0"].chunks)
    assert max(chunk.round.drafted for chunk in results["n2"].chunks if chunk.round) == 2


def test_adaptive_lengths_give_up_on_a_useless_proposer() -> None:
    sampling = replace(GREEDY, max_tokens=150, ignore_eos=True)
    rig = Rig(proposer=LyingProposer(), is_adaptive=True, must_answer=False)
    rig.run(request("a", sampling))
    rounds = [chunk.round for chunk in rig.results["a"].chunks if chunk.round]
    assert sum(round_.drafted for round_ in rounds[-60:]) <= 4
    assert_twins(rig, [request("a", sampling)])


def test_a_stream_resumed_elsewhere_goes_on_as_if_nothing_had_happened() -> None:
    for each in REQUESTS:
        whole = fake_twin(each)
        for taken in {0, 1, len(whole.token_ids) // 2, len(whole.token_ids) - 1}:
            begun = Rig()
            begun.submit(each)
            while len(begun.results[each.request_id].token_ids) < taken:
                begun.step()
            seen = begun.results[each.request_id]
            resumed = replace(each, resume=Resume(tuple(seen.token_ids), len(seen.text)))
            rest = Rig().run(resumed)[each.request_id]
            assert seen.token_ids + rest.token_ids == whole.token_ids
            assert seen.text + rest.text == whole.text
            assert (rest.finish, rest.stop_reason) == (whole.finish, whole.stop_reason)


def test_prompt_logprobs_are_the_same_in_one_chunk_and_in_many() -> None:
    sampling = replace(GREEDY, prompt_logprobs=True, logprobs=2, max_tokens=3)
    asked = request("a", sampling, prompt_length=30)
    whole = Rig(max_num_batched_tokens=64).run(asked)["a"]
    chunked = Rig(max_num_batched_tokens=16).run(asked, request("b", prompt_length=20))["a"]
    assert len(whole.prompt_logprobs) == 30
    assert whole.prompt_logprobs[0] is None
    assert [entry and entry.token_id for entry in whole.prompt_logprobs[1:]] == list(asked.prompt_token_ids[1:])
    assert whole.prompt_logprobs == chunked.prompt_logprobs
    assert all(not chunk.prompt_logprobs for chunk in whole.chunks[1:])


def test_a_prompt_can_be_scored_without_an_answer() -> None:
    asked = request("a", replace(GREEDY, prompt_logprobs=True, logprobs=0, max_tokens=0))
    result = Rig().run(asked)["a"]
    assert (result.token_ids, result.finish, len(result.prompt_logprobs)) == ([], FinishReason.LENGTH, 5)


def test_the_wait_in_the_queue_is_reported_once() -> None:
    rig = Rig(max_num_seqs=1)
    results = rig.run(request("first", replace(GREEDY, max_tokens=10, ignore_eos=True)), request("second"))
    assert results["first"].chunks[0].queue_seconds == pytest.approx(0.01)
    assert results["second"].chunks[0].queue_seconds == pytest.approx(0.11)
    assert all(chunk.queue_seconds is None for chunk in results["second"].chunks[1:])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (request("x", prompt_length=512), "context holds 512"),
        (request("x", replace(GREEDY, max_tokens=200), prompt_length=80), "KV cache holds 200"),
        (replace(request("x"), prompt_token_ids=(3, 4800)), "prompt token id 4800"),
        (request("x", replace(GREEDY, logit_bias=((48, 1.0),))), "logit_bias token id 48"),
        (replace(request("x"), resume=Resume((3,) * 30, 0)), "resumed output has 30"),
    ],
)
def test_what_can_never_run_is_refused_at_once(bad: GenerationRequest, message: str) -> None:
    rig = Rig(FakeModel(kv_tokens=200))
    failure = rig.run(bad, request("good"))["x"].failure
    assert failure
    assert failure.kind == FailureKind.BAD_REQUEST
    assert message in failure.message
    assert_twins(rig, [request("good")])


def test_the_context_limit_ends_an_answer() -> None:
    rig = Rig(FakeModel(max_model_len=32), proposer=LyingProposer())
    result = rig.run(request("a", replace(GREEDY, max_tokens=500, ignore_eos=True), prompt_length=20))["a"]
    assert (len(result.token_ids), result.finish) == (12, FinishReason.LENGTH)


def test_a_full_queue_refuses_more_but_never_a_probe() -> None:
    rig = Rig(max_waiting=2)
    rig.submit(*(request(f"r{i}") for i in range(3)))
    rig.engine.submit(request("probe"), "self", is_probe=True)
    rig.step()
    failure = rig.results["r2"].failure
    assert failure
    assert failure.kind == FailureKind.OVERLOADED
    assert not rig.results["r1"].has_ended


def test_an_id_in_use_is_refused_without_harm_to_its_first_use() -> None:
    rig = Rig()
    rig.submit(request("a"))
    rig.engine.submit(request("a"), "other router")
    rig.engine.submit(request("a"), OWNER)
    outputs = rig.engine.step()
    assert [type(output).__name__ for output in outputs[OWNER]] == ["StreamFailed", "TokenChunk"]
    assert len(outputs["other router"]) == 1


@pytest.mark.parametrize(
    "error",
    [OutOfMemory("injected"), RuntimeError("DefaultCPUAllocator: can't allocate memory"), torch.OutOfMemoryError("x")],
)
def test_running_out_of_memory_fails_the_step_and_nothing_else(error: BaseException) -> None:
    model = FakeModel()
    rig = Rig(model, proposer=LyingProposer(), max_num_seqs=2)
    rig.submit(*(request(f"r{i}") for i in range(3)))
    rig.step()
    model.fails.append(error)
    rig.run()
    kinds = [rig.results[f"r{i}"].failure for i in range(3)]
    assert [failure and failure.kind for failure in kinds] == [FailureKind.OUT_OF_MEMORY] * 2 + [None]
    assert_twins(rig, [request("r2")])
    assert rig.engine.stats.out_of_memory == 1


def test_a_row_that_is_not_a_number_fails_only_its_sequence() -> None:
    victim, neighbour = request("victim"), request("neighbour")
    model = FakeModel()
    expected = fake_twin(neighbour)
    harmless = {*expected.token_ids, *neighbour.prompt_token_ids, *victim.prompt_token_ids}
    model.poisoned = set(fake_twin(victim).token_ids[:-1]) - harmless
    assert model.poisoned
    results = Rig(model).run(victim, neighbour)
    failure = results["victim"].failure
    assert failure
    assert failure.kind == FailureKind.INTERNAL
    assert results["neighbour"].answer() == expected.answer()


def test_a_request_that_forbids_every_token_is_refused_by_its_fields_and_fails_alone() -> None:
    everything = replace(request("greedy").sampling, min_tokens=1, stop_token_ids=tuple(range(VOCABULARY)))
    impossible, neighbour = replace(request("impossible"), sampling=everything), request("neighbour")
    results = Rig().run(impossible, neighbour)
    failure = results["impossible"].failure
    assert failure
    assert failure.kind == FailureKind.BAD_REQUEST
    assert failure.message.startswith("min_tokens, stop_token_ids: ")
    assert results["neighbour"].answer() == fake_twin(neighbour).answer()


def test_an_owner_that_leaves_takes_everything_along() -> None:
    rig = Rig(proposer=LyingProposer(), max_num_seqs=2)
    rig.submit(*(request(f"r{i}") for i in range(4)))
    rig.step()
    rig.engine.cancel_owner(OWNER)
    assert not rig.engine.has_work
    rig.step()
    rig.assert_nothing_held()


def test_all_can_be_failed_at_once() -> None:
    rig = Rig(max_num_seqs=2)
    rig.submit(*(request(f"r{i}") for i in range(4)))
    rig.step()
    rig.engine.fail_all(FailureKind.SHUTTING_DOWN, "the replica stops")
    rig.run()
    kinds = {result.failure.kind for result in rig.results.values() if result.failure}
    assert kinds == {FailureKind.SHUTTING_DOWN}
    assert all(result.failure for result in rig.results.values())


@pytest.mark.parametrize("is_adaptive", [False, True])
def test_nothing_is_kept_of_requests_that_have_ended(is_adaptive: bool) -> None:
    rig = Rig(FakeModel(kv_tokens=300), proposer=NgramProposer(1, 2), is_adaptive=is_adaptive, must_answer=False)
    before = container_sizes((rig.engine,))
    plain = replace(GREEDY, max_tokens=8)
    undrafted = replace(request("n0", plain), num_speculative_tokens=0)
    rig.submit(request("answered", plain), undrafted, request("cancelled", plain))
    for _ in range(3):
        rig.step()
    rig.engine.cancel(OWNER, ["cancelled"])
    rig.run()
    assert container_sizes((rig.engine,)) == before


def test_unknown_ids_are_cancelled_in_vain() -> None:
    rig = Rig()
    rig.submit(request("a"))
    rig.engine.cancel(OWNER, ["nobody"])
    rig.engine.cancel("stranger", ["a"])
    rig.engine.cancel_owner("stranger")
    rig.run()
    assert_twins(rig, [request("a")])


def test_sampling_params_default_to_a_draw_from_the_whole_distribution() -> None:
    plain = SamplingParams(seed=5, max_tokens=12, ignore_eos=True)
    requests = [request("a", plain), request("b", replace(plain, seed=6))]
    rig = Rig()
    rig.run(*requests)
    assert_twins(rig, requests)
