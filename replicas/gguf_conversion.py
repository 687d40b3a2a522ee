"""Turns a GGUF file into a folder of safetensors; the only place where `transformers` runs a model."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from fleet.errors import ConfigError


def convert(gguf: Path, folder: Path) -> None:
    """Write config, tokenizer and float32 weights into an empty folder. Raises ConfigError in one line."""
    try:
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    except (ValueError, KeyError, OSError, NotImplementedError) as error:
        raise ConfigError(f"cannot convert {gguf}: {str(error).strip().partition(chr(10))[0]}") from error
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.save_pretrained(folder)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    save_model(model, str(folder / "model.safetensors"), metadata={"format": "pt"})
