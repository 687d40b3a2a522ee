"""How does a guardrail come to its verdict? Its question, its test and the numbers, for a person or a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from canary.judging.quantile import ARM_ALPHA, QUANTILE
from canary.judging.split import ALPHA
from canary.plan import Plan
from canary.rollout_state import Rollout, State, stage_of, verdicts_of
from canary.stats.intervals import samples_to_bound
from canary.status import Explanation, ReadingStatus
from canary.status_view import verdict_status
from canary.verdict import Verdict
from fleet.errors import NotFound

_LATER = "from promotion on an e-detector with shrinking stakes (after Shin, Ramdas, Rinaldo, arXiv 2203.03532)"
_PAIRED = f"paired betting e-process, valid at every look (Waudby-Smith & Ramdas, arXiv 2010.09686); {_LATER}"
_COUNTS = (
    f"two-sample e-variable for counts, multiplied over windows (Turner, Ly, Grünwald, arXiv 2106.02693); {_LATER}"
)
_DETECTOR = (
    "e-detector with shrinking stakes (after Shin, Ramdas, Rinaldo, arXiv 2203.03532), half on all requests, half on "
    "strata; a learned reference is the lower bound of a confidence sequence (Waudby-Smith & Ramdas, arXiv 2010.09686)"
)
_SPLIT = "likelihood ratio of binomial counts, both sides (Lindon & Malek, arXiv 2011.03567)"
_NONE = "none: it needs no statistics"
_WINDOW = "a window of both arms"
_WARM_UP = "windows that saw two weights, and the warm-up windows after a change of weight, on both arms"
_BACK = "the canary is taken to 0 % and the attempt ends"


@dataclass(frozen=True, slots=True)
class Story:
    """What is always true of a guardrail."""

    asks: str
    sample: str = _WINDOW
    method: str = _PAIRED
    ignores: str = _WARM_UP
    acts: str = _BACK
    innocent: str = "a canary that keeps its limit in every window"
    """Whom the chance of a false trip is promised to."""


STORIES: Mapping[str, Story] = {
    "itl_p95": Story(
        "is more of the canary's time per token above stable's p95, raised by the limit, than of stable's?"
    ),
    "ttft_p95": Story("do more canary requests wait for their first token beyond stable's p95, raised by the limit?"),
    "tpot_p95": Story("do more canary requests take longer per output token than stable's p95, raised by the limit?"),
    "queue_delay": Story("do more canary requests wait for a slot beyond stable's p95 plus the limit?"),
    "gap_p99": Story("are more than 1 % of the canary's gaps longer than the limit, and more than of stable's?"),
    "stall": Story("do the canary's readers, at 20 ms a token, wait for text for more of their time than stable's?"),
    "completion_lag": Story("are more of the canary's requests still open when a window ends than of stable's?"),
    "kv_pressure": Story("is the canary's KV cache nearly full for more of the time than stable's?"),
    "error_rate": Story(
        "do more canary requests fail, time out, break off or have to go on elsewhere than stable's, plus the limit?",
        "a request that ended",
        _COUNTS,
        "requests shed before they reached a path; a client that leaves is no failure",
    ),
    "cancel_rate": Story("do more clients leave the canary than stable, plus the limit?", "a request", _COUNTS),
    "peak_throughput": Story(
        "does the canary complete fewer requests per second and GPU than stable, less the limit?",
        "so many windows, with both paths saturated, as should bring 100 completed requests of each",
    ),
    "acceptance": Story(
        "is less of what is drafted accepted than the reference, less the limit, for each kind of request?",
        "a window's requests with a draft",
        _DETECTOR,
        "requests without a draft",
        innocent="a canary whose acceptance stays within the limit of the reference (what was learned included)",
    ),
    "realised_split": Story(
        "do routers give the canary the share of users that was set?",
        "a user's first request",
        _SPLIT,
        "windows that saw two weights; what a user asks after the first request",
        "the rollout holds where it is: what is compared is not what was meant; after an abort retry starts afresh",
        "a fleet whose routers follow the split",
    ),
    "signal": Story(
        "is anything heard of the requests that were sent to the canary?",
        method=_NONE,
        ignores="nothing",
        acts="the rollout holds, and goes back after on_no_data.hold if only the canary is silent",
    ),
    "oom": Story(
        "has a canary replica run out of memory, or been killed for want of it?",
        "a failed allocation, or a loss while the kernel killed there",
        _NONE,
        "replicas of other paths",
    ),
    "crash_loop": Story(
        "have three canary replicas been lost within 120 s?", "a lost replica", _NONE, "replicas that were retired"
    ),
}


def explain(rollout: Rollout, guardrail: str) -> Explanation:
    """Everything behind one verdict. Raises NotFound, with the names there are, for one that the plan has not."""
    verdicts = {verdict.guardrail: verdict for verdict in verdicts_of(rollout)}
    if guardrail not in verdicts:
        close = get_close_matches(guardrail, verdicts, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(verdicts)}"
        raise NotFound(f"rollout '{rollout.id}' has no guardrail '{guardrail}'; {hint}", param="guardrail")
    verdict, story = verdicts[guardrail], STORIES[guardrail]
    return Explanation(
        rollout=rollout.id,
        attempt=rollout.attempt,
        state=rollout.state.value,
        weight=rollout.weight,
        verdict=verdict_status(verdict),
        asks=story.asks,
        sample=story.sample,
        method=story.method,
        ignores=story.ignores,
        acts=story.acts,
        error_chance=_error_chance(rollout, guardrail),
        innocent=story.innocent,
        readings=[
            ReadingStatus(
                name=reading.name,
                value=reading.value,
                unit=reading.unit,
                samples=reading.samples,
                limit=reading.limit,
            )
            for reading in verdict.readings
        ],
        note="; ".join(_notes(rollout, verdict)),
    )


def _notes(rollout: Rollout, verdict: Verdict) -> Iterator[str]:
    if verdict.estimate is not None and verdict.interval is None and verdict.readings:
        few = " and ".join(f"{reading.samples} ({reading.name})" for reading in verdict.readings)
        yield f"{few} samples bound it on neither side; {samples_to_bound(QUANTILE, ARM_ALPHA)} of each path do"
    if verdict.proof is None:
        return
    if not rollout.is_judged:
        yield f"as it was when the rollout was {rollout.state}: nothing is compared any more"
    elif not stage_of(rollout).has_baseline:
        yield "as it was when stable last had requests to compare with"
    elif rollout.state == State.PROMOTED:
        yield "numbers and evidence are of the whole attempt; what the steps showed stands as it was at promotion"


def _error_chance(rollout: Rollout, guardrail: str) -> float | None:
    plan: Plan = rollout.plan
    if guardrail == "realised_split":
        return ALPHA
    return plan.alpha_each if guardrail in plan.guardrails.statistical else None
