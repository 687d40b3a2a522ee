"""What EAGLE heads draft from published layouts, against a slow twin written from the papers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock, Mock, patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.engine.features import Seen
from replicas.engine.sampling import Draw
from replicas.heads import eagle_proposer
from replicas.heads.cache import CacheShape, HeadCache
from replicas.heads.followed import SURELY_UNWANTED_STEPS
from replicas.speculation.messages import Closing
from replicas.speculation.tree import ROOT, Draft, Tree
from tests.replicas.heads.checkpoints import EAGLE3S, EAGLES, VOCABULARY, Files, eagle, eagle3
from tests.replicas.heads.heads_rig import GREEDY, SAMPLER, Story, features, head_from, proposer_on
from tests.replicas.heads.reference import SlowEagle, greedy_tree

COUNTS = (2, 2, 1)
DRAW = Draw(GREEDY, 0, (), ())
KEPT = 24
VARIANTS = {**EAGLES, **EAGLE3S}


def slow_of(name: str) -> SlowEagle:
    return SlowEagle(VARIANTS[name](), is_eagle3=name in EAGLE3S)


def width_of(files: Files) -> int:
    return 48 if "lm_head.weight" in files.tensors else 16


def slow_draft(
    slow: SlowEagle, story: Story, counts: tuple[int, ...], first: int = 0
) -> dict[tuple[int, ...], tuple[int, ...]]:
    """What the twin drafts after the whole story, or after what it saw from token `first` on, from scratch."""
    slow = SlowEagle(slow.files, slow.is_eagle3)
    state = torch.empty(0)
    for position in range(first, len(story.tokens) - 1):
        state = slow.step(slow.fused(story.features[position]), story.tokens[position + 1])
    return greedy_tree(slow, state, counts)


def branches(draft: Draft, tree: Tree) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Tokens by path of ranks, of a draft in which no node is missing."""
    paths: dict[int, tuple[int, ...]] = {ROOT: ()}
    for node, (parent, rank) in enumerate(zip(tree.parents, tree.ranks, strict=True)):
        paths[node] = (*paths[parent], rank)
    return {paths[node]: draft.branch(node) for node in range(len(draft))}


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_a_tree_of_drafts_is_the_papers_definition_after_any_course_of_events(name: str, tmp_path: Path) -> None:
    slow, tree = slow_of(name), Tree.of_counts(COUNTS)
    proposer = proposer_on(head_from(slow.files, tmp_path), tree)
    story = Story(proposer, 1, [5, 17, 8, 30, 2, 11, 9], features(40, width_of(slow.files), seed=1))
    story.read(4)
    story.read(6)
    story.open(prompt_length=6)
    for committed in ((7,), (21, 4, 33), (59,)):
        assert branches(story.draft(), tree) == slow_draft(slow, story, COUNTS)
        story.commit(*committed)
    assert branches(story.draft(2), tree) == slow_draft(slow, story, COUNTS[:2])
    story.commit(3)
    story.commit(12)  # a step without a draft
    assert branches(story.draft(), tree) == slow_draft(slow, story, COUNTS)


@settings(max_examples=8)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(0, 4)), min_size=3, max_size=8),
    st.sampled_from(["llama3", "sliding"]),
)
def test_sequences_that_are_drafted_for_together_do_not_disturb_each_other(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, int]], name: str
) -> None:
    slow = slow_of(name)
    proposer = proposer_on(head_from(slow.files, tmp_path_factory.mktemp("head")), Tree.chain(4))
    width = width_of(slow.files)
    stories = [
        Story(proposer, number, [number, 7, 20 + number], features(90, width, seed=number)) for number in range(3)
    ]
    for story in stories:
        story.read(2)
        story.open()
    for which, count, depth in steps:
        stories[which].commit(*(torch.arange(count) * 7 % VOCABULARY).tolist())
        proposals = proposer.propose([story.want(1 + depth) for story in stories])
    for story in stories:
        drafted = slow_draft(slow, story, (1,) * min(4, 1 + depth))
        assert proposals[story.sequence_id].token_ids == max(drafted.values(), key=len)


def test_a_chain_draws_with_the_targets_noise_and_its_own_branch_as_output(tmp_path: Path) -> None:
    sampling = replace(GREEDY, temperature=0.9, top_p=0.95, presence_penalty=1.5, logprobs=2)
    slow = slow_of("llama3")
    proposer = proposer_on(head_from(slow.files, tmp_path), Tree.chain(4))
    story = Story(proposer, 1, [5, 17, 8, 30, 2], features(40, 16, seed=1))
    story.read(4)
    story.open(sampling=sampling, prompt_length=3)
    state = torch.empty(0)
    for position in range(4):
        state = slow.step(slow.fused(story.features[position]), story.tokens[position + 1])
    expected: list[int] = []
    for _ in range(4):
        draw = replace(DRAW, sampling=sampling, prompt_token_ids=[5, 17, 8], output_token_ids=[30, 2, *expected])
        expected.append(SAMPLER.sample(slow.logits(state).float()[None], [draw])[0].token_id)
        state = slow.step(state, expected[-1])
    assert story.draft().token_ids == tuple(expected)


def test_a_long_backlog_is_run_before_it_is_asked_for_and_a_short_one_is_not(tmp_path: Path) -> None:
    proposer = proposer_on(head_from(eagle(), tmp_path), Tree.chain(2))
    story = Story(proposer, 1, list(range(50)) * 4, features(200, 16, seed=1))
    story.read(63)
    assert proposer.used_tokens == 0
    story.read(64)
    assert proposer.used_tokens > 0


@pytest.fixture
def short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept for later is short, so that the twin is quick."""
    monkeypatch.setattr(eagle_proposer, "KEPT_TOKENS", KEPT)


@pytest.mark.usefixtures("short_memory")
@pytest.mark.parametrize("name", ["llama3", "sliding", "published"])
def test_as_long_as_nobody_wants_drafts_a_head_runs_over_nothing(name: str, tmp_path: Path) -> None:
    slow, tree = slow_of(name), Tree.chain(3)
    head = head_from(slow.files, tmp_path)
    proposer = proposer_on(head, tree)
    story = Story(proposer, 1, [5, 17, 8, 30], features(2 * KEPT + 50, width_of(slow.files), seed=1))
    story.read(3)
    story.open()
    assert len(story.draft()) == 3
    with patch.object(head, "fuse") as runs:
        story.commit(7, next_draft_length=0)
        for number in range(KEPT - 10):
            story.commit(number % VOCABULARY, next_draft_length=0)
        held = proposer.used_tokens
        assert held > 0, "what is still in one piece with the backlog is kept"
        for number in range(50):
            story.commit(number * 7 % VOCABULARY, next_draft_length=0)
    assert not runs.called
    assert proposer.used_tokens == 0
    first = len(story.tokens) - 1 - KEPT
    assert story.draft().token_ids == max(slow_draft(slow, story, (1, 1, 1), first).values(), key=len)
    story.commit(3, 4)
    assert story.draft().token_ids == max(slow_draft(slow, story, (1, 1, 1), first).values(), key=len)


@pytest.mark.usefixtures("short_memory")
def test_who_comes_while_nobody_wants_drafts_is_read_from_its_end(tmp_path: Path) -> None:
    slow = slow_of("llama3")
    head = head_from(slow.files, tmp_path)
    proposer = proposer_on(head, Tree.chain(3))
    other = Story(proposer, 1, [5, 17, 8, 30], features(40, 16, seed=2))
    other.read(3)
    other.open()
    for number in range(1 + SURELY_UNWANTED_STEPS):
        other.commit(number, next_draft_length=0)
    prompt = [number * 5 % VOCABULARY for number in range(3 * KEPT)]
    story = Story(proposer, 2, prompt, features(len(prompt), 16, seed=1))
    with patch.object(head, "fuse") as runs:
        story.read(2 * KEPT)
        story.read(len(prompt) - 1)
    assert not runs.called
    story.open()
    assert story.draft().token_ids == max(slow_draft(slow, story, (1, 1, 1), KEPT).values(), key=len)


def test_beyond_its_context_a_head_drafts_nothing_and_holds_nothing(tmp_path: Path) -> None:
    proposer = proposer_on(head_from(eagle(), tmp_path), Tree.chain(4), context=10)
    story = Story(proposer, 1, [5, 6, 7, 8], features(40, 16, seed=1))
    story.read(3)
    story.open()
    drafted = []
    for token in range(20, 32):
        drafted.append(len(story.draft()))
        story.commit(token)
    assert drafted == [4, 4, 4, 3, 2, 1, 0, 0, 0, 0, 0, 0]
    assert proposer.used_tokens == 0


def test_a_full_cache_refuses_newcomers_and_keeps_its_promises_to_the_others(tmp_path: Path) -> None:
    slow = slow_of("llama3")
    proposer = proposer_on(head_from(slow.files, tmp_path), Tree.chain(3), kv_tokens=80)
    first, second = (Story(proposer, n, [n, 8, 9, 10], features(40, 16, seed=n)) for n in (1, 2))
    for story in (first, second):
        story.read(3)
        story.open()
    assert len(first.draft()) == 3
    second_tokens = second.tokens + list(range(30)) * 4
    second.tokens = second_tokens
    assert len(second.draft()) == 0
    proposer.close(Closing((2,), "finished"))
    first.commit(4, 5)
    assert first.draft().token_ids == max(slow_draft(slow, first, (1, 1, 1)).values(), key=len)
    proposer.close(Closing((1, 99), "finished"))
    assert proposer.used_tokens == 0


def test_the_cache_holds_what_the_targets_holds_but_for_a_little_room_to_grow() -> None:
    """Prompts come in chunks, side by side, and grow token by token afterwards; none is refused for want of order."""
    cache = HeadCache(CacheShape(1, 40_960, 1), dtype=torch.float32, device=torch.device("cpu"))
    filled = 0
    for needed in (*range(256, 2001, 218), *range(2001, 2450)):
        for sequence_id in range(16):
            start = cache.place(sequence_id, filled, needed)
            assert start is not None, (sequence_id, needed)
            cache.keys[0, start + filled : start + needed, 0] = torch.arange(filled, needed) + 10_000 * sequence_id
        filled = needed
    for sequence_id in range(16):
        start = cache.start(sequence_id)
        expected = torch.arange(filled) + 10_000 * sequence_id
        assert torch.equal(cache.keys[0, start : start + filled, 0], expected.float())
    cache.release(range(16))
    assert cache.used_tokens == 0


def test_sequences_that_move_to_make_room_for_others_go_on_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves: list[int] = []
    close_holes = HeadCache._close_holes
    monkeypatch.setattr(HeadCache, "_close_holes", lambda self, last: moves.append(last) or close_holes(self, last))
    slow = slow_of("llama3")
    proposer = proposer_on(head_from(slow.files, tmp_path), Tree.chain(3), kv_tokens=170)
    stories = [Story(proposer, number, [number, 8, 9, 10], features(90, 16, seed=number)) for number in range(2)]
    for story in stories:
        story.read(3)
        story.open()
    for step in range(6):
        proposals = proposer.propose([story.want(3) for story in stories])
        assert {len(proposal.token_ids) for proposal in proposals.values()} == {3}
        for story in stories:
            story.commit(*((7 * step + offset + story.sequence_id) % VOCABULARY for offset in range(12)))
    proposals = proposer.propose([story.want(3) for story in stories])
    assert set(moves) == {0, 1}
    for story in stories:
        expected = slow_draft(slow, story, (1, 1, 1))
        assert proposals[story.sequence_id].token_ids == max(expected.values(), key=len)


def test_a_sequence_that_is_refused_owes_nothing_and_costs_nothing(tmp_path: Path) -> None:
    """A missing proposal would count as a draft that came for the time that this took: next to none."""
    proposer = proposer_on(head_from(eagle(), tmp_path), Tree.chain(3), kv_tokens=80)
    large, small = (
        Story(proposer, 1, list(range(50)) * 2, features(200, 16, seed=1)),
        Story(proposer, 2, [5, 6, 7, 8], features(40, 16, seed=2)),
    )
    unread = Story(proposer, 3, [5, 6, 7, 8], features(40, 16, seed=3))
    for story in (large, small):
        story.read(len(story.tokens) - 1)
        story.open()
    unread.open()
    for _ in range(2):
        proposals = proposer.propose([story.want(3) for story in (large, small, unread)])
        assert {number: len(proposal.token_ids) for number, proposal in proposals.items()} == {1: 0, 2: 3, 3: 0}


def test_a_head_without_memory_drafts_nothing_and_counts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proposer = proposer_on(head_from(eagle(), tmp_path), Tree.chain(3))
    story = Story(proposer, 1, [5, 6, 7, 8], features(40, 16, seed=1))
    story.read(3)
    story.open()
    with monkeypatch.context() as short:
        short.setattr(torch, "cat", Mock(side_effect=torch.OutOfMemoryError("no more")))
        assert len(story.draft()) == 0
    assert proposer.state().out_of_memory == 1


def test_features_that_cannot_be_kept_for_want_of_memory_are_a_sequence_without_drafts(tmp_path: Path) -> None:
    proposer = proposer_on(head_from(eagle(), tmp_path), Tree.chain(3))
    story = Story(proposer, 1, [5, 6, 7, 8], features(40, 16, seed=1))
    state = MagicMock()
    state.__getitem__.return_value.clone.side_effect = torch.OutOfMemoryError("no more")
    proposer.read([Seen(1, 0, state, (6, 7, 8))])
    story.open()
    assert story.draft() == Draft()
    assert proposer.state().out_of_memory == 1


def test_a_missing_chunk_ends_the_drafts_and_a_new_start_brings_them_back(tmp_path: Path) -> None:
    slow = slow_of("published")
    proposer = proposer_on(head_from(slow.files, tmp_path), Tree.chain(2))
    story = Story(proposer, 1, [5, 6, 7, 8, 9, 10], features(40, 48, seed=1))
    story.read(2)
    story.read_to = 3  # nobody showed the third
    story.read(5)
    story.open()
    assert len(story.draft()) == 0
    proposer.close(Closing((1,), "preempted"))
    story.read_to, story.epoch = 0, 2
    story.read(5)
    story.open(prompt_length=4)
    assert story.draft().token_ids == max(slow_draft(slow, story, (1, 1)).values(), key=len)


def test_logits_that_are_no_distribution_end_a_branch(tmp_path: Path) -> None:
    files = eagle3()
    files.tensors["lm_head.weight"].fill_(torch.nan)
    story = Story(proposer_on(head_from(files, tmp_path), Tree.chain(2)), 1, [5, 6, 7], features(9, 48, seed=1))
    story.read(2)
    story.open()
    assert story.draft() == Draft()
