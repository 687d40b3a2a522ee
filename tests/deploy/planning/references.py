"""The planning tables of the reference, with the conventions they were computed by."""

from __future__ import annotations

from dataclasses import replace

from deploy.planning.acceptance import Acceptance
from deploy.planning.architecture import Architecture
from deploy.planning.config_file import find_architecture
from deploy.planning.hardware import GpuOptions, choose_gpu
from deploy.planning.kv_cache import kv_cache
from deploy.planning.memory import Deployment
from deploy.planning.proposers import Proposer, build_proposer, parse_proposer
from deploy.planning.roofline import TARGET_OVERHEAD_SECONDS, PassCost, model_cost
from deploy.planning.speedup import Pairing
from deploy.planning.weights import count_parameters, weight_bytes

GIB = 2**30
H200 = choose_gpu(GpuOptions("H200"))


def deployment(model: str, gpu: str, gpus: int = 1) -> Deployment:
    """A model in 16 bits with 90 % of the memory and 2 GiB of reserve on each GPU."""
    target = find_architecture(model)
    return Deployment(
        memory_bytes=choose_gpu(GpuOptions(gpu)).memory_bytes,
        utilisation=0.9,
        reserve_bytes=2 * GIB,
        weight_bytes=weight_bytes(target, "bfloat16") / gpus,
        cache=kv_cache(target, 2.0, gpus),
        tensor_parallel=gpus,
    )


def proposer(text: str, target: str = "llama-3.1-8b", gpus: int = 1) -> Proposer:
    return build_proposer(parse_proposer(text, draft_length=4, acceptance=None), find_architecture(target), gpus)


def whole(model: Architecture, cost: PassCost) -> PassCost:
    """The tables count the embedding among what a pass reads and multiplies with; the planner does not."""
    total = count_parameters(model).total
    return replace(cost, fixed_bytes=2.0 * total, flops_per_token=2.0 * total)


def pairing(text: str, rate: float, round_trip_seconds: float = 0.0) -> Pairing:
    """Llama-3.1-8B on an H200 with that proposer, reckoned as the tables do."""
    target = find_architecture("llama-3.1-8b")
    cost = model_cost(target, "bfloat16", kv_cache(target, 2.0), 1, TARGET_OVERHEAD_SECONDS)
    return Pairing(H200, whole(target, cost), proposer(text), Acceptance(rate), round_trip_seconds)
