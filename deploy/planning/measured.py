"""What acceptance does a running fleet, or a vLLM server, report? Both export the same counters."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from deploy.planning.acceptance import Acceptance
from fleet.errors import ConfigError

ROUNDS = "vllm:spec_decode_num_drafts_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
EMPTY = "fleet_rounds_empty_total"
"""Of a fleet alone: vLLM drafts in every round."""
TIMEOUT_SECONDS = 10.0


def read_acceptance(source: str, path: str | None = None) -> Acceptance:
    """Acceptance by position from a /metrics URL or a file of its text, of one path or of everything.

    Raises ConfigError where it cannot be read or nothing was drafted.
    """
    acceptance = acceptance_in(_text(source), path)
    if acceptance is None:
        where = f" on path '{path}'" if path else ""
        raise ConfigError(f"{source}: no drafted round is counted{where}; send traffic to a speculative path first")
    return acceptance


def acceptance_in(text: str, path: str | None = None) -> Acceptance | None:
    """Accepted tokens at each position ÷ rounds that drafted, and how many of all rounds did, from Prometheus text.

    Unconditional: position i counts as accepted only where all before it were, so the rates fall. None where no round
    with a draft is counted.
    """
    rounds, empty, accepted = 0.0, 0.0, defaultdict[int, float](float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if path is not None and sample.labels.get("path") != path:
                continue
            if sample.name == ROUNDS:
                rounds += sample.value
            elif sample.name == EMPTY:
                empty += sample.value
            elif sample.name == ACCEPTED:
                accepted[int(sample.labels["position"])] += sample.value
    if rounds <= 0:
        return None
    rates = tuple(accepted[position] / rounds for position in range(max(accepted, default=-1) + 1)) or (0.0,)
    return Acceptance(per_position=rates, drafting_share=rounds / (rounds + empty))


def _text(source: str) -> str:
    if source.startswith(("http://", "https://")):
        try:
            answer = httpx.get(source, timeout=TIMEOUT_SECONDS, trust_env=False)
            answer.raise_for_status()
        except httpx.HTTPError as error:
            raise ConfigError(f"cannot read {source}: {error}") from error
        return answer.text
    try:
        return Path(source).expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {source}: {error}") from error
