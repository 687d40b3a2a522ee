"""Is a round with drafts faster than plain steps, where does that end, and what may the network cost?"""

from __future__ import annotations

from dataclasses import dataclass, replace

from deploy.planning.acceptance import Acceptance, rate_for
from deploy.planning.hardware import Gpu
from deploy.planning.proposers import Proposer
from deploy.planning.roofline import Load, PassCost, pass_seconds

LONGEST_DRAFT = 8


@dataclass(frozen=True, slots=True)
class Pairing:
    """A target and a proposer with the acceptance to reckon with, and the round trip between them."""

    gpu: Gpu
    target: PassCost
    proposer: Proposer
    acceptance: Acceptance
    round_trip_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Cell:
    """What is predicted for one load."""

    batch: int
    context: int
    speed_up: float
    """Tokens/s with drafts ÷ without, at equal batch."""
    best_length: int
    """The draft length that pays best, 0 where none does."""
    best_speed_up: float
    needed_acceptance: float | None
    """The conditional rate at which drafting breaks even; None where even full acceptance loses."""
    longest_round_trip_seconds: float | None
    """Beyond it the network eats the gain; negative where there is none, None where it is hidden altogether."""


def round_seconds(pairing: Pairing, load: Load, length: int) -> float:
    """Time of one round with `length` drafts.

    T_v(B, k+1) + (1 − h)·(k·T_d + RTT): a share h of the rounds finds its drafts made ahead. h = 0 is the serial
    round of Leviathan et al. 2022 (arXiv:2211.17192 §3.3) with batch-dependent costs.
    """
    verify = pass_seconds(pairing.target, pairing.gpu, load, length + 1)
    exposed = 1.0 - pairing.proposer.spec.hit_rate
    return verify + exposed * (_draft_seconds(pairing, load, length) + pairing.round_trip_seconds)


def speed_up(pairing: Pairing, load: Load, length: int) -> float:
    """Tokens/s with drafts ÷ tokens/s of plain steps, at the same batch; 1 for no drafts."""
    if length == 0:
        return 1.0
    return _pace(pairing, load, length) * pass_seconds(pairing.target, pairing.gpu, load, 1)


def predict(pairing: Pairing, load: Load) -> Cell:
    """Everything there is to say about one load."""
    length = pairing.proposer.spec.draft_length
    best = best_length(pairing, load)
    plain = pass_seconds(pairing.target, pairing.gpu, load, 1)
    return Cell(
        batch=load.batch,
        context=load.context,
        speed_up=speed_up(pairing, load, length),
        best_length=best,
        best_speed_up=speed_up(pairing, load, best),
        needed_acceptance=rate_for(round_seconds(pairing, load, length) / plain, length),
        longest_round_trip_seconds=_longest_round_trip(pairing, load, length),
    )


def best_length(pairing: Pairing, load: Load) -> int:
    """The draft length with the highest speed-up; the shortest of equals, 0 where none pays."""
    longest = pairing.proposer.spec.draft_length if pairing.proposer.is_one_pass else LONGEST_DRAFT
    longest = min(longest, pairing.acceptance.longest or longest)
    return max(range(longest + 1), key=lambda length: (speed_up(pairing, load, length), -length))


def paying_batches(pairing: Pairing, context: int, largest: int) -> list[tuple[int, int]]:
    """Ranges of batch sizes up to `largest` at which the asked draft length is faster, ends included.

    More than one range where experts make small batches dear: a second token per sequence reads other experts.
    """
    length = pairing.proposer.spec.draft_length
    ranges: list[tuple[int, int]] = []
    for batch in range(1, largest + 1):
        if speed_up(pairing, Load(batch, context), length) <= 1.0:
            continue
        if ranges and ranges[-1][1] == batch - 1:
            ranges[-1] = (ranges[-1][0], batch)
        else:
            ranges.append((batch, batch))
    return ranges


def with_round_trip(pairing: Pairing, seconds: float) -> Pairing:
    """The same pair over a slower or faster network."""
    return replace(pairing, round_trip_seconds=seconds)


def peak_ratio(pairing: Pairing, context: int, plain_sequences: int, sequences: int) -> float:
    """Tokens/s ÷ tokens/s without a proposer, both with as many sequences as their cache holds."""
    length = pairing.proposer.spec.draft_length
    plain = plain_sequences / pass_seconds(pairing.target, pairing.gpu, Load(plain_sequences, context), 1)
    if sequences == 0:
        return 0.0
    return sequences * _pace(pairing, Load(sequences, context), length) / plain


def _pace(pairing: Pairing, load: Load, length: int) -> float:
    """Tokens/s of one sequence, where a share f of the rounds drafts and the others are plain steps.

    (1 + f·(E[τ] − 1)) / (f·T_round + (1 − f)·T(1)): the mean over both kinds of rounds, in tokens and in seconds.
    """
    plain = pass_seconds(pairing.target, pairing.gpu, load, 1)
    share = pairing.acceptance.drafting_share
    tokens = 1.0 + share * (pairing.acceptance.tokens_per_round(length) - 1.0)
    return tokens / (share * round_seconds(pairing, load, length) + (1.0 - share) * plain)


def _draft_seconds(pairing: Pairing, load: Load, length: int) -> float:
    cost = pairing.proposer.cost
    if cost is None or length == 0:
        return 0.0
    return pairing.proposer.passes(length) * pass_seconds(cost, pairing.gpu, load, 1)


def _longest_round_trip(pairing: Pairing, load: Load, length: int) -> float | None:
    """The round trip at which the speed-up is exactly 1."""
    plain = pass_seconds(pairing.target, pairing.gpu, load, 1)
    local = round_seconds(with_round_trip(pairing, 0.0), load, length)
    exposed = 1.0 - pairing.proposer.spec.hit_rate
    gain = pairing.acceptance.tokens_per_round(length) * plain - local
    return gain / exposed if exposed > 0.0 else None
