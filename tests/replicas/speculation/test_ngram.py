"""Prompt lookup against a version that searches the whole text every time."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fleet.generation import SamplingParams
from replicas.speculation.messages import Closing, Opening, Proposal, SequenceVerdict
from replicas.speculation.ngram import NgramProposer
from replicas.speculation.proposer import Want

OPENING = Opening(
    sequence_id=1,
    epoch=1,
    token_ids=(5, 6, 7, 8, 5, 6),
    prompt_length=5,
    sampling=SamplingParams(seed=0, max_tokens=100),
    choice_index=0,
    draft_length=4,
)


def opened(*token_ids: int, shortest: int = 1, longest: int = 3) -> NgramProposer:
    proposer = NgramProposer(shortest, longest)
    proposer.open(replace(OPENING, token_ids=token_ids))
    return proposer


def drafted(proposer: NgramProposer, base_length: int, max_tokens: int = 4, epoch: int = 1) -> tuple[int, ...] | None:
    proposal = proposer.propose([Want(1, epoch, base_length, max_tokens)]).get(1)
    return proposal.token_ids if proposal else None


def expected(tokens: list[int], shortest: int, longest: int, max_tokens: int) -> tuple[int, ...] | None:
    for size in range(longest, shortest - 1, -1):
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == tokens[len(tokens) - size :]:
                text = list(tokens)
                for follower in range(start + size, start + size + max_tokens):
                    text.append(text[follower])
                return tuple(text[len(tokens) :])
    return None


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=20),
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3), max_size=6),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(1, 8),
)
def test_it_agrees_with_a_search_of_the_whole_text_after_every_verdict(
    prompt: list[int], blocks: list[list[int]], shortest: int, wider: int, max_tokens: int
) -> None:
    longest = shortest + wider
    proposer, tokens = opened(*prompt, shortest=shortest, longest=longest), list(prompt)
    for block in blocks:
        assert drafted(proposer, len(tokens), max_tokens) == expected(tokens, shortest, longest, max_tokens)
        proposer.settle([SequenceVerdict(1, 1, len(tokens), len(block) - 1, tuple(block), max_tokens)])
        tokens += block
    assert drafted(proposer, len(tokens), max_tokens) == expected(tokens, shortest, longest, max_tokens)


def test_the_longest_match_is_preferred_to_a_more_recent_one() -> None:
    assert drafted(opened(1, 2, 3, 9, 3, 8, 1, 2, 3), base_length=9, max_tokens=1) == (9,)


def test_the_most_recent_of_equal_matches_wins() -> None:
    assert drafted(opened(1, 2, 7, 1, 2, 8, 1, 2), base_length=8, max_tokens=1) == (8,)


def test_a_repetition_goes_on_with_its_own_period() -> None:
    assert drafted(opened(4, 1, 2, 1, 2), base_length=5, max_tokens=5) == (1, 2, 1, 2, 1)


def test_nothing_is_proposed_where_nothing_repeats() -> None:
    assert drafted(opened(1, 2, 3, 4), base_length=4) is None


def test_another_state_than_its_own_gets_no_proposal() -> None:
    proposer = opened(*OPENING.token_ids)
    assert drafted(proposer, base_length=7) is None
    assert drafted(proposer, base_length=6, epoch=2) is None
    proposer.settle([SequenceVerdict(1, 1, 9, 0, (4,), 4), SequenceVerdict(8, 1, 6, 0, (4,), 4)])
    assert drafted(proposer, base_length=6) == (7, 8, 5, 6)


def test_opening_again_replaces_and_closing_forgets() -> None:
    proposer = opened(*OPENING.token_ids)
    proposer.open(replace(OPENING, epoch=2, token_ids=(3, 4, 3)))
    assert proposer.propose([Want(1, 2, 3, 2)]) == {1: Proposal(1, 2, 3, (4, 3))}
    proposer.close(Closing((1, 99), "finished"))
    assert proposer.propose([Want(1, 2, 3, 2)]) == {}
