"""What can one GPU hold, read and compute?"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import ByteSize, TypeAdapter, ValidationError

from fleet.errors import ConfigError

GPU_FACTS = Path(__file__).parent / "gpus.json"
GIB = 2**30
BANDWIDTH_EFFICIENCY = 0.75
COMPUTE_EFFICIENCY = 0.60
"""Shares of the datasheet's figures that decoding kernels reach."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; rates are the datasheet's."""

    name: str
    memory_bytes: float
    bandwidth: float
    """Bytes/s."""
    flops: float
    """Dense 16-bit FLOP/s."""

    @property
    def usable_bandwidth(self) -> float:
        return self.bandwidth * BANDWIDTH_EFFICIENCY

    @property
    def usable_flops(self) -> float:
        return self.flops * COMPUTE_EFFICIENCY

    @property
    def free_tokens(self) -> float:
        """Tokens in flight up to which a 16-bit model's weights take longer to read than to multiply."""
        return self.usable_flops / self.usable_bandwidth


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """What a user says about the GPU; each figure overrides the named card's."""

    name: str | None = None
    memory: str | None = None
    bandwidth: str | None = None
    tflops: float | None = None


def choose_gpu(options: GpuOptions) -> Gpu:
    """The named card with the given figures; without a name, all three figures are needed. Raises ConfigError."""
    known = json.loads(GPU_FACTS.read_text())["gpus"]
    facts: dict[str, float] = {}
    if options.name is not None:
        names = {name.lower(): name for name in known}
        key = options.name.lower()
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
            hint = f"; did you mean '{names[near[0]]}'?" if near else ""
            raise ConfigError(f"GPU '{options.name}' is not known{hint} (known: {', '.join(known)})")
        facts = known[names[key]]
    memory = parse_size(options.memory, "--gpu-memory") if options.memory else int(facts.get("memory_gib", 0.0) * GIB)
    bandwidth = (
        parse_size(options.bandwidth, "--bandwidth") if options.bandwidth else facts.get("bandwidth_tb_s", 0.0) * 1e12
    )
    flops = 1e12 * (options.tflops if options.tflops is not None else facts.get("bf16_tflops", 0.0))
    for value, option in ((memory, "--gpu-memory"), (bandwidth, "--bandwidth"), (flops, "--tflops")):
        if value <= 0:
            raise ConfigError(f"say which GPU: --gpu {next(iter(known))}|…, or {option} in its place")
    return Gpu(options.name or "custom GPU", memory, bandwidth, flops)


def parse_size(text: str, option: str) -> float:
    """Bytes in a text like 80GiB or 3.35TB/s. Raises ConfigError naming the option."""
    try:
        return float(TypeAdapter(ByteSize).validate_python(text.strip().removesuffix("/s")))
    except ValidationError as error:
        raise ConfigError(f"{option} '{text}' is no size; write it like 80GiB or 3.35TB/s") from error
