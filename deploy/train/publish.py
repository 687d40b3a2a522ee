"""The trained files as others read them: config.json and model.safetensors."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from replicas.heads.checkpoint import Checkpoint, read_checkpoint

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"


def publish(checkpoint: Checkpoint, folder: Path) -> None:
    """Write the checkpoint in bfloat16; integer and bool tensors as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**checkpoint.config, "dtype": "bfloat16", "torch_dtype": "bfloat16"}
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
    tensors = {name: _published(tensor) for name, tensor in checkpoint.tensors.items()}
    unfinished = folder / "unfinished"
    save_file(tensors, unfinished, metadata={"format": "pt"})
    unfinished.chmod((folder / CONFIG_FILE).stat().st_mode)  # safetensors makes files that only their owner can read
    os.replace(unfinished, folder / WEIGHTS_FILE)


def published(folder: Path, device: torch.device) -> Checkpoint:
    """What lies in the folder, in float32 on a device; maps of token ids stay on the CPU."""
    found = read_checkpoint(folder)
    tensors = {
        name: tensor.to(device, torch.float32) if tensor.is_floating_point() else tensor
        for name, tensor in found.tensors.items()
    }
    return Checkpoint(found.name, found.config, tensors)


def file_bytes(checkpoint: Checkpoint) -> int:
    """Size of the published tensors."""
    return sum(
        tensor.numel() * (2 if tensor.is_floating_point() else tensor.element_size())
        for tensor in checkpoint.tensors.values()
    )


def _published(tensor: Tensor) -> Tensor:
    return (tensor.bfloat16() if tensor.is_floating_point() else tensor).cpu().contiguous()
