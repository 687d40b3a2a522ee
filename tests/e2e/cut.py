"""A shallower model from a deeper one: its first layers, stored as a model of its own with the same tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def cut_layers(source: Path, target: Path, layers: int) -> Path:
    """Write the first `layers` layers of a model folder as a new folder; returns it."""
    target.mkdir()
    for file in source.iterdir():
        if file.suffix != ".safetensors" and not file.name.endswith(".index.json"):
            (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((target / "config.json").read_text())
    config["num_hidden_layers"] = layers
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:layers]
    (target / "config.json").write_text(json.dumps(config))
    weights: dict[str, torch.Tensor] = {}
    for shard in source.glob("*.safetensors"):
        weights |= load_file(shard)
    kept = {name: value for name, value in weights.items() if _layer_of(name) < layers}
    save_file(kept, target / "model.safetensors", metadata={"format": "pt"})
    return target


def _layer_of(name: str) -> int:
    parts = name.split(".")
    return int(parts[parts.index("layers") + 1]) if "layers" in parts else -1
