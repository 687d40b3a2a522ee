"""Suffix decoding against a version that searches every text for every length of match."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fleet.generation import SamplingParams
from replicas.speculation.messages import FINISHED, Closing, Opening, SequenceVerdict
from replicas.speculation.occurrences import LATEST, SHORTEST_MATCH, Occurrences
from replicas.speculation.proposer import Want
from replicas.speculation.suffix import Path, SuffixLimits, SuffixProposer, best_path

LIMITS = SuffixLimits(depth=8, factor=1.0, least_chance=0.1)
texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=20), max_size=4)


def index_of(written: list[list[int]], most_texts: int = 10) -> Occurrences:
    index = Occurrences(most_texts)
    for text in written:
        index.extend(text)
        index.end_text()
    return index


def expected_path(context: list[int], written: list[list[int]], limits: SuffixLimits, max_tokens: int) -> Path:
    """The definition: for every length of match, count what followed it everywhere, and follow the majority."""
    best = Path()
    for length in range(min(len(context), limits.depth - 1), SHORTEST_MATCH - 1, -1):
        end = context[len(context) - length :]
        rests = [
            text[i + length :]
            for text in reversed(written)
            for i in range(len(text) - length, -1, -1)
            if text[i : i + length] == end and text[i + length :]
        ]
        tokens: list[int] = []
        chance, total = 1.0, 0.0
        while rests and len(tokens) < min(max_tokens, int(limits.factor * length), limits.depth - length):
            counts = Counter(rest[len(tokens)] for rest in rests if len(rest) > len(tokens))
            if not counts:
                break
            token_id, count = counts.most_common(1)[0]
            chance *= count / len(rests)
            if chance < limits.least_chance:
                break
            tokens.append(token_id)
            total += chance
            rests = [rest for rest in rests if rest[: len(tokens)] == tokens]
        if total > best.expected:
            best = Path(tuple(tokens), total)
    return best


@given(
    texts,
    st.lists(st.integers(0, 2), max_size=10),
    st.builds(SuffixLimits, st.integers(2, 8), st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from([0.0, 0.1, 0.5])),
    st.integers(1, 8),
)
def test_the_path_has_the_most_expected_accepted_tokens(
    written: list[list[int]], context: list[int], limits: SuffixLimits, max_tokens: int
) -> None:
    assert best_path(context, index_of(written), limits, max_tokens) == expected_path(
        context, written, limits, max_tokens
    )


def test_a_shorter_match_that_leaves_more_room_for_the_draft_is_taken() -> None:
    """Three of four places are matched: as a match of two it leaves room for two drafts."""
    limits = SuffixLimits(depth=4, factor=1.0, least_chance=0.0)
    assert best_path([0, 0, 2], index_of([[0, 0, 2, 0, 0]]), limits, 2) == Path((0, 0), 2.0)


@given(texts, st.lists(st.integers(0, 2), max_size=10), st.integers(1, 3))
def test_only_the_newest_texts_are_remembered(written: list[list[int]], context: list[int], most: int) -> None:
    kept, all_of_them = index_of(written, most), index_of(written[-most:], most)
    assert len(kept) == len(all_of_them)
    assert best_path(context, kept, LIMITS, 4) == best_path(context, all_of_them, LIMITS, 4)


@given(texts, st.lists(st.integers(0, 2), max_size=10), st.integers(0, 40))
def test_long_texts_count_by_their_tokens(written: list[list[int]], context: list[int], most_tokens: int) -> None:
    index = Occurrences(10, most_tokens)
    for text in written:
        index.extend(text)
        index.end_text()
        assert len(index) <= most_tokens
    kept = list[list[int]]()
    for text in reversed(written):
        if sum(len(other) + 1 for other in (text, *kept)) > most_tokens:
            break
        kept.insert(0, text)
    assert best_path(context, index, LIMITS, 4) == best_path(context, index_of(kept), LIMITS, 4)
    assert len(index._latest) == len(index_of(kept)._latest), "pairs that are gone take no memory"


def test_ids_of_a_large_vocabulary_are_never_mistaken_for_others() -> None:
    index = index_of([[2**18 - 1, 0, 7], [0, 2**18 - 1, 8], [1, 2**17, 9]])
    assert best_path([2**18 - 1, 0], index, LIMITS, 1).token_ids == (7,)
    assert best_path([0, 2**18 - 1], index, LIMITS, 1).token_ids == (8,)
    assert best_path([2, 2**17], index, LIMITS, 1).token_ids == ()


def test_a_pair_that_is_everywhere_is_judged_by_its_newest_occurrences() -> None:
    index = index_of([[1, 2, 3]] * (2 * LATEST) + [[1, 2, 4]] * LATEST, most_texts=10_000)
    assert best_path([1, 2], index, LIMITS, 1) == Path((4,), 1.0)


class Writer:
    """A proposer and the sequences it is told about."""

    def __init__(self, remembered: int) -> None:
        self.proposer = SuffixProposer(LIMITS, remembered)
        self.lengths: dict[int, int] = {}

    def open(self, sequence_id: int, prompt: list[int]) -> None:
        sampling = SamplingParams(seed=0, max_tokens=100)
        self.proposer.open(Opening(sequence_id, 1, tuple(prompt), len(prompt), sampling, 0, 4))
        self.lengths[sequence_id] = len(prompt)

    def commit(self, sequence_id: int, *tokens: int) -> None:
        self.proposer.settle([SequenceVerdict(sequence_id, 1, self.lengths[sequence_id], 0, tokens, 4)])
        self.lengths[sequence_id] += len(tokens)

    def drafted(self, sequence_id: int, max_tokens: int = 4) -> tuple[int, ...]:
        proposal = self.proposer.propose([Want(sequence_id, 1, self.lengths[sequence_id], max_tokens)]).get(sequence_id)
        return proposal.token_ids if proposal else ()


def test_a_sequence_finds_its_own_prompt_and_output() -> None:
    writer = Writer(remembered=0)
    writer.open(1, [5, 6, 7, 8, 9, 5, 6])
    assert writer.drafted(1) == (7, 8)
    writer.commit(1, 7, 30, 31, 5, 6, 7)
    assert writer.drafted(1) == (30, 31, 5), "the newest of equals"


def test_outputs_that_finished_are_looked_in_but_no_others_and_no_prompts() -> None:
    writer = Writer(remembered=2)
    for sequence_id, reason in ((1, FINISHED), (2, "cancelled"), (3, "preempted")):
        writer.open(sequence_id, [40, 41, 42])
        writer.commit(sequence_id, sequence_id, 50 + sequence_id, 60, 61)
        writer.proposer.close(Closing((sequence_id, 99), reason))
    for sequence_id, expected in ((1, (60, 61)), (2, ()), (3, ())):
        writer.open(10 + sequence_id, [sequence_id, 50 + sequence_id])
        assert writer.drafted(10 + sequence_id) == expected
    writer.open(20, [40, 41])
    assert writer.drafted(20) == ()


def test_what_ended_an_output_is_remembered_too() -> None:
    writer = Writer(remembered=1)
    writer.open(1, [40, 41, 42])
    writer.commit(1, 1, 2)
    writer.proposer.close(Closing((1,), FINISHED, {1: (3, 4)}))
    writer.open(2, [1, 2])
    assert writer.drafted(2) == (3, 4)


def test_another_state_than_its_own_gets_no_proposal() -> None:
    writer = Writer(remembered=0)
    writer.open(1, [5, 6, 7, 5, 6])
    assert writer.proposer.propose([Want(1, 2, 5, 4), Want(2, 1, 5, 4), Want(1, 1, 6, 4)]) == {}
    writer.proposer.settle([SequenceVerdict(1, 2, 5, 0, (9,), 4)])
    assert writer.drafted(1) == (7, 5)
