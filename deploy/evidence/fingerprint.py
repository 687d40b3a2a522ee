"""What do measurements of a replica depend on? Every part by name, so that a change can be named."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import torch

from deploy.serve_args import PathArgs
from fleet.config import HEAD_METHODS, ModelConfig, SpeculativeConfig
from replicas.model_store import Progress, resolve_head, resolve_model
from router.sse import STREAM_VERSION

PROTOCOL: Final = 2
"""Of a matrix, what its blocks ask in which order and what of it counts: raised where two runs would not compare."""
LIBRARIES: Final = ("torch", "numba", "ray", "tokenizers", "grpcio", "speculation-fleet")
MODEL_FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "config": ("config.json",),
    "generation_config": ("generation_config.json",),
    "weights": ("*.safetensors",),
    "tokenizer": ("tokenizer*.json", "special_tokens_map.json", "*.model", "vocab*", "merges.txt"),
    "chat_template": ("chat_template*",),
}
HEAD_FILES: Final = ("config.json", "*.safetensors", "*.bin", "*.pt")
SAMPLES: Final = 64
SAMPLE_BYTES: Final = 2**18
_NAMES = {"model", "revision", "served_name", "tls"}
"""Where something lies and what it is called; what it holds is a part of its own."""

Fingerprint = dict[str, str]


def fingerprint_of(args: PathArgs, progress: Progress) -> Fingerprint:
    """The parts of one replica, computed where it runs. Raises ConfigError where a model's files are not found."""
    folder = resolve_model(args.model, progress)
    files = {f"model.{name}": digest_of(folder, patterns) for name, patterns in MODEL_FILES.items()}
    return {
        **files,
        **_proposer_files(args.speculative, progress),
        **settings_of("model", args.model.model_dump(mode="json", exclude=_NAMES)),
        **settings_of("engine", args.engine.model_dump(mode="json")),
        **settings_of("speculative", _dumped(args.speculative)),
        **settings_of("draft", args.draft.model_dump(mode="json") if args.speculative else {}),
        **settings_of("drill", args.drill.model_dump(mode="json", exclude_defaults=True) if args.drill else {}),
        **hardware(),
        **libraries(),
        "router.stream": str(STREAM_VERSION),
        "bench.protocol": str(PROTOCOL),
    }


def digest_of(folder: Path, patterns: Iterable[str]) -> str:
    """Of the names and contents of a folder's files; 'none' where no file fits.

    A file is read as `SAMPLES` equally spaced blocks of `SAMPLE_BYTES`, whole where that covers it: weights that were
    trained again differ nearly everywhere, and a model of 100 GB should not be read twice at every start.
    """
    files = sorted({file for pattern in patterns for file in folder.glob(pattern)})
    digest = blake2b(digest_size=8)
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}:".encode())
        with file.open("rb") as stream:
            for offset in _offsets(size):
                stream.seek(offset)
                digest.update(stream.read(SAMPLE_BYTES))
    return digest.hexdigest() if files else "none"


def settings_of(section: str, values: Mapping[str, Any]) -> Fingerprint:
    """One part for each setting, named as in fleet.yaml."""
    return {f"{section}.{key}": value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}


def hardware() -> Fingerprint:
    """Processor, cores, GPUs and their driver, as this process sees them."""
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    cpu = _matched(Path("/proc/cpuinfo"), r"^model name\s*:\s*(.+)$")
    return {
        "hardware.cpu": cpu or platform.processor() or "unknown",
        "hardware.cores": str(os.cpu_count()),
        "hardware.gpus": ", ".join(gpus) or "none",
        "hardware.driver": _matched(Path("/proc/driver/nvidia/version"), r"Module\s+([\d.]+)") or "none",
    }


def libraries() -> Fingerprint:
    """Versions of what a step's time depends on."""
    return {"version.python": platform.python_version(), **{f"version.{name}": _version(name) for name in LIBRARIES}}


def _proposer_files(speculative: SpeculativeConfig | None, progress: Progress) -> Fingerprint:
    if speculative is None or speculative.model is None:
        return {}
    if speculative.method in HEAD_METHODS:
        folder = resolve_head(speculative.model, speculative.revision, progress)
        return {"proposer.files": digest_of(folder, HEAD_FILES)}
    folder = resolve_model(ModelConfig(model=speculative.model, revision=speculative.revision), progress)
    return {"proposer.files": digest_of(folder, (*MODEL_FILES["config"], *MODEL_FILES["weights"]))}


def _dumped(speculative: SpeculativeConfig | None) -> Mapping[str, Any]:
    return {"method": "none"} if speculative is None else speculative.model_dump(mode="json", exclude=_NAMES)


def _offsets(size: int) -> Iterator[int]:
    """Where the blocks of a file begin, the last one at its end."""
    if size <= SAMPLES * SAMPLE_BYTES:
        yield from range(0, size, SAMPLE_BYTES)
    else:
        yield from (number * (size - SAMPLE_BYTES) // (SAMPLES - 1) for number in range(SAMPLES))


def _matched(file: Path, pattern: str) -> str | None:
    try:
        found = re.search(pattern, file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    except OSError:
        return None
    return found.group(1).strip() if found else None


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
