"""What traffic did a matrix measure, and how much of the drafts was accepted? What live traffic is compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from deploy.evidence.acceptance_spans import SpanOf, predicted, round_means
from deploy.evidence.bootstrap import MIN_ROUNDS
from deploy.evidence.cells import Cell
from deploy.evidence.config import MatrixConfig
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


def acceptance_spans(cells: Sequence[Cell], config: MatrixConfig) -> dict[str, dict[str, SpanOf]]:
    """By candidate and sampling mode: where one more round's mean of accepted/drafted is to be expected.

    A mode with less than `MIN_ROUNDS` drafting rounds is left out.
    """
    means: dict[str, dict[str, list[float]]] = {}
    for cell in cells:
        mode = mode_of(config, cell.condition.sampling)
        means.setdefault(cell.candidate, {}).setdefault(mode.value, []).extend(round_means(cell.rounds))
    return {
        candidate: {mode: predicted(values) for mode, values in modes.items() if len(values) >= MIN_ROUNDS}
        for candidate, modes in means.items()
    }
