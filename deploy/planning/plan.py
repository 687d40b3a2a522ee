"""The whole answer of `fleet plan`: what was asked, and what the small models of memory and time say to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from deploy.planning.acceptance import Acceptance
from deploy.planning.architecture import Architecture
from deploy.planning.formats import Formats
from deploy.planning.hardware import Gpu
from deploy.planning.memory import Deployment, MemoryPlan, plan_memory, require_room
from deploy.planning.proposers import Proposer, ProposerSpec, build_proposer
from deploy.planning.roofline import TARGET_OVERHEAD_SECONDS, Load, PassCost, model_cost
from deploy.planning.speedup import Cell, Pairing, paying_batches, peak_ratio, predict, speed_up, with_round_trip
from deploy.planning.weights import active_parameters, count_parameters

ASSUMED_ACCEPTANCE = Acceptance(rate=0.7)
ROUND_TRIPS_MS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
LARGEST_BATCH = 4096
NOTE = (
    "A prior for choosing what to measure first, never a verdict: real acceptance depends on your traffic, and only "
    "a canary on it decides. Doubt this model where a measurement differs by more than 30 %."
)


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be planned."""

    model: Architecture
    gpu: Gpu
    formats: Formats
    tensor_parallel: int
    utilisation: float
    reserve_bytes: float
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    round_trip_seconds: float
    """Between the target and a draft worker; proposers in the target's process have none."""
    proposers: tuple[ProposerSpec, ...]


@dataclass(frozen=True, slots=True)
class Capacity:
    """What fits at one length of sequences, over all GPUs of the target together."""

    context: int
    tokens: int
    sequences: int
    lost: float
    """Share of the baseline's tokens that the proposer displaces."""


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One GPU's memory by part, in bytes."""

    usable: float
    weights: float
    reserve: float
    proposer_weights: float
    kv_cache: float
    kv_bytes_per_token: float
    proposer_kv_bytes_per_token: float
    capacities: tuple[Capacity, ...]


@dataclass(frozen=True, slots=True)
class ContextPlan:
    """One proposer at one length of sequences."""

    context: int
    cells: tuple[Cell, ...]
    paying_batches: tuple[tuple[int, int], ...]
    """Ranges of batch sizes, up to what fits, at which the asked draft length is faster."""
    peak_ratio: float
    """Throughput ÷ the baseline's, both with all the sequences that fit: the displaced ones are paid here."""


@dataclass(frozen=True, slots=True)
class RoundTripRow:
    """Speed-ups at the first context for each batch, over a network of this round trip."""

    milliseconds: float
    speed_ups: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ProposerPlan:
    """What one proposer costs and may bring."""

    label: str
    draft_length: int
    acceptance: str
    drafting_share: float
    """Share of the rounds that draft, where that was measured; else 1."""
    is_acceptance_assumed: bool
    measured_positions: int | None
    """How many positions `acceptance` was given for, where it was by position; further ones bring nothing."""
    parameters: int
    is_on_own_gpu: bool
    own_gpu_bytes: float
    """What it needs there, with cache for as many sequences as the target's; 0 beside the target."""
    memory: MemoryRow
    contexts: tuple[ContextPlan, ...]
    round_trips: tuple[RoundTripRow, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything, ready for tables or JSON."""

    model: str
    family: str
    parameters: int
    active_parameters: int
    number_format: str
    gpu: str
    tensor_parallel: int
    free_tokens: float
    """Tokens in flight up to which verification costs no more than a plain step."""
    batches: tuple[int, ...]
    baseline: MemoryRow
    proposers: tuple[ProposerPlan, ...]
    note: str = field(default=NOTE)


def make_plan(question: Question) -> Plan:
    """Answer the question. Raises ConfigError where model or proposer do not fit at all."""
    model = question.model
    deployment = _deployment(question)
    alone = plan_memory(deployment)
    _require_room(question, alone, f"{model.name} in {question.formats.weights}")
    cost = model_cost(
        model, question.formats.read(model), deployment.cache, question.tensor_parallel, TARGET_OVERHEAD_SECONDS
    )
    return Plan(
        model=model.name,
        family=model.family,
        parameters=count_parameters(model).total,
        active_parameters=active_parameters(model),
        number_format=question.formats.weights,
        gpu=question.gpu.name,
        tensor_parallel=question.tensor_parallel,
        free_tokens=question.gpu.free_tokens,
        batches=question.batches,
        baseline=_memory_row(alone, alone, question.contexts),
        proposers=tuple(_proposer_plan(question, deployment, cost, spec) for spec in question.proposers),
    )


def _require_room(question: Question, memory: MemoryPlan, what: str) -> None:
    for context in question.contexts:
        require_room(memory, context, what, is_on_cpu=question.formats.on_cpu is not None)


def _deployment(question: Question) -> Deployment:
    return Deployment(
        memory_bytes=question.gpu.memory_bytes,
        utilisation=question.utilisation,
        reserve_bytes=question.reserve_bytes,
        weight_bytes=question.formats.target_bytes(question.model) / question.tensor_parallel,
        cache=question.formats.cache(question.model, question.tensor_parallel),
        tensor_parallel=question.tensor_parallel,
    )


def _proposer_plan(question: Question, deployment: Deployment, cost: PassCost, spec: ProposerSpec) -> ProposerPlan:
    proposer = build_proposer(spec, question.model, question.tensor_parallel, question.formats)
    alone, memory = plan_memory(deployment), plan_memory(deployment, proposer)
    _require_room(question, memory, f"{question.model.name} with {spec.label}")
    acceptance = spec.acceptance or ASSUMED_ACCEPTANCE
    is_remote = spec.method == "draft_model"
    pairing = Pairing(question.gpu, cost, proposer, acceptance, question.round_trip_seconds if is_remote else 0.0)
    return ProposerPlan(
        label=spec.label,
        draft_length=spec.draft_length,
        acceptance=str(acceptance),
        drafting_share=acceptance.drafting_share,
        is_acceptance_assumed=spec.acceptance is None,
        measured_positions=acceptance.longest,
        parameters=proposer.parameters,
        is_on_own_gpu=spec.is_on_own_gpu,
        own_gpu_bytes=_own_gpu_bytes(proposer, memory, question) if spec.is_on_own_gpu else 0.0,
        memory=_memory_row(memory, alone, question.contexts),
        contexts=tuple(
            _context_plan(pairing, context, question.batches, (alone, memory)) for context in question.contexts
        ),
        round_trips=_round_trips(pairing, question) if is_remote else (),
    )


def _own_gpu_bytes(proposer: Proposer, memory: MemoryPlan, question: Question) -> float:
    needed = max(proposer.cache.bytes_per_token * c * memory.sequences(c) for c in question.contexts)
    return proposer.weight_bytes + needed + question.reserve_bytes


def _memory_row(plan: MemoryPlan, alone: MemoryPlan, contexts: tuple[int, ...]) -> MemoryRow:
    return MemoryRow(
        usable=plan.usable,
        weights=plan.weights,
        reserve=plan.reserve,
        proposer_weights=plan.proposer_weights,
        kv_cache=plan.cache,
        kv_bytes_per_token=plan.target_cache.bytes_per_token,
        proposer_kv_bytes_per_token=plan.proposer_cache.bytes_per_token,
        capacities=tuple(
            Capacity(context, plan.tokens, plan.sequences(context), 1 - plan.tokens / alone.tokens)
            for context in contexts
        ),
    )


def _context_plan(
    pairing: Pairing, context: int, batches: tuple[int, ...], memory: tuple[MemoryPlan, MemoryPlan]
) -> ContextPlan:
    """`memory` is without and with the proposer."""
    plain, sequences = (plan.sequences(context) for plan in memory)
    return ContextPlan(
        context=context,
        cells=tuple(predict(pairing, Load(batch, context)) for batch in batches if batch <= sequences),
        paying_batches=tuple(paying_batches(pairing, context, min(sequences, LARGEST_BATCH))),
        peak_ratio=peak_ratio(pairing, context, plain, sequences),
    )


def _round_trips(pairing: Pairing, question: Question) -> tuple[RoundTripRow, ...]:
    context, length = question.contexts[0], pairing.proposer.spec.draft_length
    return tuple(
        RoundTripRow(
            milliseconds,
            tuple(
                speed_up(with_round_trip(pairing, milliseconds / 1000), Load(batch, context), length)
                for batch in question.batches
            ),
        )
        for milliseconds in ROUND_TRIPS_MS
    )
