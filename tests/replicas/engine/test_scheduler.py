"""The scheduler without a model: who runs, with how many tokens, and who gives way."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.generation import GenerationRequest, SamplingParams
from replicas.engine.kv_extents import GROWTH_TOKENS, KvExtents
from replicas.engine.scheduler import Plan, Scheduler, fair_shares
from replicas.engine.sequence import Sequence
from replicas.engine.text import OutputText
from replicas.speculation.tree import Draft
from tests.replicas.engine.rig import tiny_tokenizer

MAX_TOKENS = 16
DRAFT = Draft((7,) * 4)


def sequence(number: int, prompt: int, output: int, *, is_probe: bool = False) -> Sequence:
    request = GenerationRequest(str(number), (3,) * prompt, SamplingParams(seed=0, max_tokens=output))
    text = OutputText(tiny_tokenizer(), request.sampling, request.prompt_token_ids, 10_000)
    tokens = list(request.prompt_token_ids)
    return Sequence(number, request, "owner", text, 0.0, prompt + output, tokens, is_probe=is_probe)


def carry_out(scheduler: Scheduler, plan: Plan, accepted: int = 0) -> list[Sequence]:
    """Pretend to run a plan: every sampling sequence gets its accepted tokens and one more; the finished ones leave."""
    finished = []
    for work in plan.works:
        item = work.sequence
        assert item.extent is not None
        assert item.cached + work.new_tokens + len(work.drafted) <= item.extent.length
        if work.samples:
            item.token_ids.extend([5] * (1 + min(accepted, len(work.drafted))))
            item.cached = len(item.token_ids) - 1
        else:
            item.cached += work.new_tokens
        if item.remaining == 0:
            finished.append(item)
    for item in finished:
        scheduler.remove(item)
    return finished


class SlowTwin:
    """The rules of one step written down again, for an arena without end: token counts by sequence id."""

    def __init__(self, max_sequences: int) -> None:
        self._max_sequences = min(max_sequences, MAX_TOKENS - 1)

    def expect(self, running: list[Sequence], waiting: list[Sequence], draft: int) -> dict[int, tuple[int, int]]:
        decoding = [item for item in running if item.pending == 1]
        prefilling = [item for item in running if item.pending > 1]
        left = MAX_TOKENS - len(decoding)
        for_drafts = left // 2 if prefilling or waiting else left
        drafted = dealt([min(draft, item.remaining - 1) for item in decoding], for_drafts)
        left -= sum(drafted)
        expected = {item.id: (1, count) for item, count in zip(decoding, drafted, strict=True)}
        for item in prefilling + waiting[: self._max_sequences - len(running)]:
            if left > 0:
                tokens = min(item.pending, left)
                expected[item.id] = (tokens, 0)
                left -= tokens
        return expected


def dealt(wanted: list[int], available: int) -> list[int]:
    """One at a time to everyone who wants more, as long as there is any."""
    shares = [0] * len(wanted)
    order = sorted(range(len(wanted)), key=lambda index: (wanted[index], index), reverse=True)
    while available and shares != wanted:
        for index in order:
            gets = available > 0 and shares[index] < wanted[index]
            shares[index] += gets
            available -= gets
    return shares


requests = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=12)


@settings(deadline=None)
@given(requests, st.integers(1, 20), st.integers(0, 6), st.integers(0, 6))
def test_with_room_for_all_every_step_is_the_twins(
    sizes: list[tuple[int, int]], max_sequences: int, draft: int, accepted: int
) -> None:
    extents = KvExtents(10_000)
    scheduler = Scheduler(extents, max_sequences=max_sequences, max_tokens=MAX_TOKENS)
    twin = SlowTwin(max_sequences)
    for number, (prompt, output) in enumerate(sizes):
        scheduler.add(sequence(number, prompt, output))
    while scheduler.running or scheduler.waiting:
        drafts = {item.id: Draft((7,) * min(draft, item.remaining - 1)) for item in scheduler.running}
        expected = twin.expect(list(scheduler.running), list(scheduler.waiting), draft)
        plan = scheduler.schedule(drafts)
        assert {work.sequence.id: (work.new_tokens, len(work.drafted)) for work in plan.works} == expected
        assert not plan.preempted
        carry_out(scheduler, plan, accepted)
    assert extents.used_tokens == 0


@settings(deadline=None)
@given(requests, st.integers(70, 140), st.integers(0, 4))
def test_in_a_tight_arena_all_come_through_the_oldest_first_and_nothing_leaks(
    sizes: list[tuple[int, int]], capacity: int, draft: int
) -> None:
    extents = KvExtents(capacity)
    scheduler = Scheduler(extents, max_sequences=8, max_tokens=MAX_TOKENS)
    for number, (prompt, output) in enumerate(sizes):
        scheduler.add(sequence(number, prompt, output))
    finished: set[int] = set()
    for _ in range(4000):
        if not (scheduler.running or scheduler.waiting):
            break
        oldest = scheduler.running[0] if scheduler.running else scheduler.waiting[0]
        plan = scheduler.schedule({item.id: Draft((7,) * min(draft, item.remaining - 1)) for item in scheduler.running})
        assert sum(work.new_tokens + len(work.drafted) for work in plan.works) <= MAX_TOKENS
        assert oldest not in plan.preempted or not scheduler.running
        held = sorted((item.extent.start, item.extent.end) for item in scheduler.running if item.extent)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(held))
        assert extents.used_tokens == sum(end - start for start, end in held)
        finished |= {item.id for item in carry_out(scheduler, plan)}
    assert finished == set(range(len(sizes)))
    assert extents.used_tokens == 0


@given(st.lists(st.integers(0, 9), max_size=6), st.integers(0, 40))
def test_shares_are_as_if_dealt_one_by_one(wanted: list[int], available: int) -> None:
    assert fair_shares(wanted, available) == dealt(wanted, available)


def test_long_drafts_share_what_room_there_is() -> None:
    scheduler = Scheduler(KvExtents(5000), max_sequences=8, max_tokens=256)
    for number in range(8):
        scheduler.add(sequence(number, 4, 200))
    carry_out(scheduler, scheduler.schedule({}))
    plan = scheduler.schedule({number: Draft((7,) * 63) for number in range(8)})
    assert [len(work.drafted) for work in plan.works] == [31] * 8


def test_a_probe_goes_first() -> None:
    scheduler = Scheduler(KvExtents(1000), max_sequences=1, max_tokens=MAX_TOKENS)
    scheduler.add(sequence(1, 4, 4))
    scheduler.add(sequence(2, 1, 1, is_probe=True))
    assert [work.sequence.id for work in scheduler.schedule({}).works] == [2]


def test_a_sequence_grows_in_place_and_moves_only_when_walled_in() -> None:
    extents = KvExtents(1000)
    scheduler = Scheduler(extents, max_sequences=4, max_tokens=MAX_TOKENS)
    first, second = sequence(1, 4, 500), sequence(2, 4, 500)
    scheduler.add(first)
    carry_out(scheduler, scheduler.schedule({}))
    for _ in range(2 * GROWTH_TOKENS):
        plan = scheduler.schedule({})
        assert not plan.moves
        carry_out(scheduler, plan)
    scheduler.add(second)
    moves = []
    for _ in range(2 * GROWTH_TOKENS):
        plan = scheduler.schedule({})
        moves += plan.moves
        carry_out(scheduler, plan)
    assert moves[0].source == 0
    copied = sum(move.length for move in moves)
    assert copied <= len(first.token_ids) + len(second.token_ids), "copying is not amortised"


def test_nobody_is_preempted_for_a_draft() -> None:
    extents = KvExtents(2 * (4 + GROWTH_TOKENS))
    scheduler = Scheduler(extents, max_sequences=2, max_tokens=MAX_TOKENS)
    scheduler.add(sequence(1, 4, 120))
    scheduler.add(sequence(2, 4, 120))
    carry_out(scheduler, scheduler.schedule({}))
    for _ in range(GROWTH_TOKENS - 2):
        plan = scheduler.schedule({1: DRAFT, 2: DRAFT})
        assert not plan.preempted
        carry_out(scheduler, plan)
    lengths = [len(work.drafted) for work in scheduler.schedule({1: DRAFT, 2: DRAFT}).works]
    assert max(lengths) < 4
