"""What traffic did a matrix measure, and how much of the drafts was accepted? What live traffic is compared with."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from scipy.stats import t

from deploy.evidence.bootstrap import MIN_ROUNDS
from deploy.evidence.cells import Cell
from deploy.evidence.config import MatrixConfig
from deploy.evidence.pairing import PairedRound
from fleet.traffic import SamplingMode
from fleet.traffic_kinds import kind_of


def mode_of(config: MatrixConfig, sampling: str) -> SamplingMode:
    """What a named way of sampling is for routing."""
    return SamplingMode.GREEDY if config.sampling[sampling].is_greedy else SamplingMode.SAMPLED


def asked_kinds(cells: Sequence[Cell], config: MatrixConfig) -> dict[str, int]:
    """The baseline's completed requests by kind, of the level of each sampling that has most of them.

    All levels ask the same prompts, so that adding them up would only feign more of them.
    """
    kinds: Counter[str] = Counter()
    for sampling in config.sampling:
        requests = [cell.baseline_requests for cell in cells if cell.condition.sampling == sampling]
        for timed in max(requests, key=len, default=[]):
            request = timed.request
            if request.is_done:
                kinds[kind_of(request.prompt_tokens, request.output_tokens, mode_of(config, sampling))] += 1
    return dict(kinds)


def acceptance_spans(cells: Sequence[Cell], config: MatrixConfig) -> dict[str, dict[str, tuple[float, float]]]:
    """By candidate and sampling mode: the 95 % prediction interval for one more round's mean of accepted/drafted.

    Unlike an interval for the mean it does not shrink to nothing, so that no real traffic would fit into it. A mode
    with less than `MIN_ROUNDS` drafting rounds is left out.
    """
    means: dict[str, dict[str, list[float]]] = {}
    for cell in cells:
        mode = mode_of(config, cell.condition.sampling)
        means.setdefault(cell.candidate, {}).setdefault(mode.value, []).extend(_round_means(cell.rounds))
    return {
        candidate: {mode: predicted(values) for mode, values in modes.items() if len(values) >= MIN_ROUNDS}
        for candidate, modes in means.items()
    }


def predicted(values: Sequence[float]) -> tuple[float, float]:
    """mean ± t·s·√(1 + 1/n), cut to [0, 1] (Geisser, Predictive Inference, 1993, section 2.1)."""
    count, mean = len(values), float(np.mean(values))
    reach = float(t.ppf(0.975, count - 1)) * float(np.std(values, ddof=1)) * math.sqrt(1 + 1 / count)
    return max(0.0, mean - reach), min(1.0, mean + reach)


def _round_means(rounds: Iterable[PairedRound]) -> list[float]:
    shares = (
        [timed.request.accepted / timed.request.drafted for timed in item.candidate_requests if timed.request.drafted]
        for item in rounds
    )
    return [sum(values) / len(values) for values in shares if values]
