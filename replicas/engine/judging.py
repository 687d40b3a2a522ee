"""What the rejection rule commits for one sequence: coins and recoveries from streams of their own."""

from __future__ import annotations

from collections.abc import Sequence as Items

from torch import Tensor

from replicas.engine.block import Block
from replicas.engine.noise import Purpose, coin, stream_key
from replicas.engine.race import draw as draw_from
from replicas.engine.race import draw_sparse
from replicas.engine.sampling import Draw, Sampler, UnusableLogits
from replicas.speculation.messages import Opening, Proposal
from replicas.speculation.rejection import first_accepted
from replicas.speculation.tree import Draft


def judged_block(sampler: Sampler, draft: Draft, logits: Tensor, draws: Items[Draw]) -> Block:
    """Judge a draft that brings its distributions; `logits` [len(draft) + 1, V] and `draws` are row by row."""
    try:
        path, committed = _walk(sampler, draft, logits, draws)
    except UnusableLogits as error:
        return Block(unusable=error.reasons[0])
    asked = draws[0].sampling.logprobs
    rows = [0, *(node + 1 for node in path)]
    logprobs = () if asked is None else tuple(sampler.logprobs(logits[rows], committed, asked))
    return Block(tuple(committed), logprobs, tuple(path))


def was_drawn(opening: Opening, proposal: Proposal) -> bool:
    """Whether each token is what its distribution gives with the draft's own noise: a `tracked.DrawCheck`.

    The rule keeps the target's distribution only for tokens that were drawn from what is named. A draft that rounds,
    mixes rows up, or names one distribution and draws from another would bend the answers without a sign; drawing
    again finds it out.
    """
    seed, choice = opening.sampling.seed, opening.choice_index
    first = proposal.base_length - opening.prompt_length
    pairs = enumerate(zip(proposal.token_ids, proposal.distributions, strict=True), start=first)
    return all(
        draw_sparse(q, stream_key(seed, choice, position, Purpose.DRAFT)) == (token_id,)
        for position, (token_id, q) in pairs
    )


def _walk(sampler: Sampler, draft: Draft, logits: Tensor, draws: Items[Draw]) -> tuple[list[int], list[int]]:
    """The accepted nodes and the committed tokens. Rows off the branch follow tokens that never were."""
    path: list[int] = []
    committed: list[int] = []
    row = 0
    while children := draft.children(row - 1):
        p, key = sampler.probabilities(logits[row], draws[row]).numpy(), draws[row].key(Purpose.COIN)
        token_ids = [draft.token_ids[child] for child in children]
        coins = [coin(key, index) for index in range(len(children))]
        taken, left = first_accepted(token_ids, p, draft.distributions[children[0]], coins)
        if taken is None:
            return path, [*committed, draw_from(left, draws[row].key(Purpose.RECOVERY))]
        path.append(children[taken])
        committed.append(token_ids[taken])
        row = children[taken] + 1
    return path, [*committed, sampler.sample(logits[row : row + 1], draws[row : row + 1])[0].token_id]
