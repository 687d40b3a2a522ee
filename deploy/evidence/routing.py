"""What does routing by evidence bring, beside the baseline and beside speculating always, over all cells of one run?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from deploy.evidence.bootstrap import MIN_ROUNDS, PairedEffect
from deploy.evidence.cells import Cell
from deploy.evidence.config import ROUTED, MatrixConfig
from deploy.evidence.pairing import log_gains
from deploy.evidence.recommendation import METRIC_WORDS
from deploy.evidence.result import RoutingEffect


def routing_effects(cells: Sequence[Cell], config: MatrixConfig) -> tuple[RoutingEffect, ...]:
    """One for each path that speculates always; none where requests were not also left to the router."""
    return tuple(_effects(cells, config))


def routing_text(effects: Sequence[RoutingEffect], objective: str) -> str:
    """One sentence for each; empty where nothing was measured."""
    return " ".join(_sentence(effect, METRIC_WORDS[objective]) for effect in effects)


def _effects(cells: Sequence[Cell], config: MatrixConfig) -> Iterator[RoutingEffect]:
    objective = config.judge.objective
    routed = _gains_by_round(cells, ROUTED, objective)
    for always in (path for path in config.candidates if path != ROUTED):
        fixed = _gains_by_round(cells, always, objective)
        shared = sorted(routed.keys() & fixed.keys())
        if len(shared) >= MIN_ROUNDS:
            yield RoutingEffect(
                always=always,
                over_baseline=PairedEffect([routed[number] for number in shared], config.seed).ratio(),
                always_over_baseline=PairedEffect([fixed[number] for number in shared], config.seed).ratio(),
                over_always=PairedEffect([routed[number] - fixed[number] for number in shared], config.seed).ratio(),
            )


def _gains_by_round(cells: Sequence[Cell], candidate: str, objective: str) -> dict[int, float]:
    """The mean logarithm of the gain over all conditions, of the rounds that have every condition."""
    tables = [
        {item.baseline.round: gain for item in cell.rounds for gain in log_gains((item,), objective)}
        for cell in cells
        if cell.candidate == candidate
    ]
    if not tables:
        return {}
    whole = set.intersection(*(set(table) for table in tables))
    return {number: sum(table[number] for table in tables) / len(tables) for number in whole}


def _sentence(effect: RoutingEffect, what: str) -> str:
    over, always, against = (
        f"{gain.estimate:.2f}× (95 % {gain.low:.2f} – {gain.high:.2f})"
        for gain in (effect.over_baseline, effect.always_over_baseline, effect.over_always)
    )
    return (
        f"Over all cells, {what} as the router decides is {over} as fast as on the baseline, and {always} on "
        f"{effect.always} alone: routing by evidence is {against} as fast as always speculating."
    )
