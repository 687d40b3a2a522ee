"""Every knob, with its bounds; the one place that reads YAML and the environment."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fleet.errors import ConfigError
from fleet.notices import NoticeKind
from fleet.vllm_keys import without_foreign

DEFAULT_MODEL = "SmolLM2-135M-Instruct"

LOOKUP_METHODS = ("ngram", "suffix")
"""Proposers that look up what the text has said before, without a model."""
HEAD_METHODS = ("eagle", "eagle3", "medusa")
"""Proposers that draft from the target's own states."""
READING_METHODS = ("draft_model", "eagle", "eagle3")
"""Proposers that read the text with a network, and so have a context of their own."""
JUDGED_METHODS = ("draft_model", *HEAD_METHODS)
"""Proposers that can name what they draw from; for a look-up both acceptance rules come to the same."""
DRAFT_TOKENS, LOOKUP_DRAFT_TOKENS = 4, 16
"""Longest draft where nothing is said. Looking further costs nothing, and what repeats, often repeats for long."""
MAX_TREE_NODES = 256

PathName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,39}$")]


class Section(BaseModel):
    """A frozen part of the config that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelConfig(Section):
    """Which model answers, and in what number format."""

    model: str = Field(DEFAULT_MODEL, min_length=1, description="Hub id, local folder or GGUF file.")
    revision: str | None = None
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    max_model_len: int | None = Field(None, ge=16, description="Tokens of prompt and answer; None = the model's own.")
    served_name: str | None = Field(None, min_length=1, description="Name in the API; None = the model's.")


class EngineConfig(Section):
    """Batching, memory and threads of one target worker."""

    max_num_seqs: int = Field(16, ge=1, le=1024, description="Sequences that run at once.")
    max_num_batched_tokens: int = Field(256, ge=16, le=65536, description="Tokens of one step; the prefill chunk.")
    kv_cache_tokens: int | None = Field(None, ge=64, description="KV budget in tokens; None = from kv_cache_gib.")
    kv_cache_gib: float = Field(1.0, gt=0, le=4096)
    threads: int | None = Field(None, ge=1, le=512, description="CPU threads of the worker; None = torch's choice.")
    device: Literal["auto", "cpu", "cuda"] = "auto"
    enforce_eager: bool = Field(False, description="Never use CUDA graphs; without effect on a CPU.")
    max_waiting: int = Field(1024, ge=1, description="Requests the engine queues before it refuses more.")


class TlsConfig(Section):
    """Certificates of the verify stream; with `ca` on both sides it is mutual."""

    certificate: Path
    key: Path
    ca: Path


class SpeculativeConfig(Section):
    """How tokens are proposed; keys as in vLLM's --speculative-config where they mean the same (`vllm_keys.py`)."""

    method: Literal["draft_model", "eagle", "eagle3", "medusa", "ngram", "suffix"]
    model: str | None = Field(
        None, min_length=1, description="Hub id or folder of the draft or head, or a draft's GGUF."
    )
    revision: str | None = Field(None, min_length=1, description="Of the hub id.")
    layers: int | None = Field(None, ge=1, description="draft_model: the target's own first n layers and its head.")
    num_speculative_tokens: int = Field(
        DRAFT_TOKENS, ge=1, le=32, description=f"Longest draft; ngram and suffix: {LOOKUP_DRAFT_TOKENS} if not given."
    )
    max_model_len: int | None = Field(
        None, ge=16, description="Tokens up to which a sequence is drafted for; None = as far as the draft was trained."
    )
    tree: tuple[int, ...] | tuple[tuple[int, ...], ...] | None = Field(
        None,
        min_length=1,
        description="eagle, eagle3, medusa: children per level, or paths of ranks; replaces num_speculative_tokens.",
    )
    acceptance: Literal["coupled", "rejection"] = Field(
        "coupled",
        description="coupled: the same tokens whatever drafts; rejection: the same distribution.",
    )
    eagle_aux_layers: Literal["entering", "output"] = Field(
        "entering", description="eagle3: whether the head's layer ids name the states that enter or leave those layers."
    )
    prompt_lookup_min: int = Field(2, ge=1, le=32)
    prompt_lookup_max: int = Field(4, ge=1, le=32)
    suffix_decoding_max_tree_depth: int = Field(24, ge=2, le=256, description="Longest match and draft together.")
    suffix_decoding_max_cached_requests: int = Field(10000, ge=0, description="Finished outputs to look in; 0 = none.")
    suffix_decoding_max_spec_factor: float = Field(1.0, gt=0, description="Drafted tokens per matched one, at most.")
    suffix_decoding_min_token_prob: float = Field(0.1, ge=0, le=1, description="Least estimated chance of a token.")
    adaptive: bool = Field(True, description="Choose the draft length from acceptance and step costs, 0 included.")
    draft_ahead: bool = Field(False, description="Draft on while the target verifies; off where they share cores.")
    draft_device: Literal["auto", "cpu", "cuda"] = "auto"
    draft_threads: int | None = Field(None, ge=1, le=512)
    deadline_floor_ms: float = Field(20.0, gt=0, description="A round's deadline is never below this.")
    deadline_ceiling_ms: float = Field(2000.0, gt=0, description="... and never above this.")
    tls: TlsConfig | None = None

    @model_validator(mode="before")
    @classmethod
    def _knows_vllms_keys(cls, settings: object) -> object:
        return without_foreign(settings) if isinstance(settings, Mapping) else settings

    @model_validator(mode="before")
    @classmethod
    def _looks_further_than_it_drafts(cls, settings: object) -> object:
        if not isinstance(settings, Mapping) or settings.get("method") not in LOOKUP_METHODS:
            return settings
        return {"num_speculative_tokens": LOOKUP_DRAFT_TOKENS, **settings}

    @model_validator(mode="after")
    def _names_one_source(self) -> SpeculativeConfig:
        if self.method == "draft_model" and (self.model is None) == (self.layers is None):
            raise ValueError("draft_model needs exactly one of 'model' and 'layers'")
        if self.method in HEAD_METHODS and (self.model is None or self.layers is not None):
            raise ValueError(f"{self.method} needs 'model', the head's hub id or folder, and no 'layers'")
        if self.method in LOOKUP_METHODS and (self.model is not None or self.layers is not None):
            raise ValueError(f"{self.method} takes neither 'model' nor 'layers'")
        if self.max_model_len is not None and self.method not in READING_METHODS:
            raise ValueError(f"max_model_len belongs to {', '.join(READING_METHODS)}; {self.method} has no context")
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError("prompt_lookup_min must not exceed prompt_lookup_max")
        if self.deadline_floor_ms > self.deadline_ceiling_ms:
            raise ValueError("deadline_floor_ms must not exceed deadline_ceiling_ms")
        return self

    @property
    def draft_length(self) -> int:
        """Tokens of the longest branch of a draft."""
        if self.tree is None:
            return self.num_speculative_tokens
        paths = [len(item) for item in self.tree if not isinstance(item, int)]
        return max(paths, default=len(self.tree))

    @model_validator(mode="after")
    def _rejection_knows_what_was_drawn_from(self) -> SpeculativeConfig:
        if self.acceptance == "rejection" and self.method not in JUDGED_METHODS:
            raise ValueError(f"acceptance 'rejection' judges drafts of {', '.join(JUDGED_METHODS)}, which are drawn")
        return self

    @model_validator(mode="after")
    def _tree_is_small(self) -> SpeculativeConfig:
        if self.tree is None:
            return self
        if self.method not in HEAD_METHODS:
            raise ValueError(f"{self.method} drafts no tree; 'tree' belongs to {', '.join(HEAD_METHODS)}")
        if _tree_nodes(self.tree) > MAX_TREE_NODES:
            raise ValueError(f"tree: more than {MAX_TREE_NODES} nodes")
        return self


def _tree_nodes(tree: tuple[int, ...] | tuple[tuple[int, ...], ...]) -> int:
    """How many tokens a tree drafts; ValueError where it is none."""
    paths = [item for item in tree if not isinstance(item, int)]
    known = {(), *paths}
    for path in paths:
        if not path or min(path) < 0 or path[:-1] not in known or paths.count(path) > 1:
            raise ValueError(f"tree: path {list(path)} is empty, negative, named twice, or has no parent")
    counts = [item for item in tree if isinstance(item, int)]
    if min(counts, default=1) < 1:
        raise ValueError("tree: every level needs at least one child")
    levels: Iterable[int] = accumulate(counts, operator.mul)
    return len(paths) + sum(levels)


class DrillConfig(Section):
    """A fault that is really caused, to see the guardrails work. Never set it on a path that serves users."""

    draft_delay_ms: float = Field(0.0, ge=0, description="Every proposal is held back this long.")
    useless_draft: bool = Field(False, description="Proposals are replaced by arbitrary tokens.")
    step_delay_ms: float = Field(0.0, ge=0, description="Every target step takes this much longer.")
    out_of_memory_after_requests: int | None = Field(
        None, ge=0, description="Once so many requests were accepted, a step asks the allocator for more than there is."
    )


class DraftResources(Section):
    """What the draft worker reserves on the Ray node, in the second bundle of the replica's placement group."""

    num_cpus: float = Field(0.5, ge=0)
    num_gpus: float = Field(0.0, ge=0)


class Autoscaling(Section):
    """Replica count by ongoing requests per replica."""

    min_replicas: int = Field(1, ge=1)
    max_replicas: int = Field(ge=1)
    target_ongoing_requests: float = Field(8.0, gt=0)

    @model_validator(mode="after")
    def _min_below_max(self) -> Autoscaling:
        if self.min_replicas > self.max_replicas:
            raise ValueError("min_replicas must not exceed max_replicas")
        return self


class PathConfig(Section):
    """One serving path: replicas of one configuration."""

    replicas: int = Field(1, ge=1, le=1000)
    autoscaling: Autoscaling | None = None
    num_cpus: float = Field(0.5, ge=0)
    num_gpus: float = Field(0.0, ge=0)
    speculative: SpeculativeConfig | None = None
    draft: DraftResources = DraftResources()
    engine: EngineConfig | None = Field(None, description="None = the fleet's engine section.")
    drill: DrillConfig | None = None
    graceful_shutdown_timeout_s: float = Field(600.0, ge=1)


class RouterConfig(Section):
    """The OpenAI-compatible front."""

    replicas: int = Field(1, ge=1, le=1000)
    num_cpus: float = Field(0.5, ge=0)
    max_in_flight: int = Field(256, ge=1, description="Streams open at once per router; more wait.")
    max_queued: int = Field(256, ge=0, description="Requests that wait per router; more get 429.")
    queue_timeout_s: float = Field(60.0, gt=0)
    request_timeout_s: float = Field(600.0, gt=0)
    body_timeout_s: float = Field(
        20.0, gt=0, description="A request body must be there within so long, extended as the next line says."
    )
    body_min_bytes_per_s: float = Field(
        1000.0, gt=0, description="Each byte that arrives extends that by its share of a second at this rate."
    )
    stall_timeout_s: float = Field(60.0, gt=0, description="A stream without a token for so long has lost its replica.")
    assignment_keys: tuple[str, ...] = Field(
        ("header:x-session-id", "user", "request_id"),
        min_length=1,
        description="First present wins: 'header:NAME', 'user' or 'request_id'.",
    )
    api_keys: dict[str, str] = Field(
        default_factory=dict, description="Tenant name -> key; 'env:NAME' and 'file:PATH' are looked up. Empty = open."
    )
    admin_token: str | None = Field(None, description="'env:NAME' and 'file:PATH' are looked up; None = no admin API.")
    report_interval_s: float = Field(0.25, gt=0, le=5)
    graceful_shutdown_timeout_s: float = Field(600.0, ge=1)


class WebhookConfig(Section):
    """Someone who is told of a rollout's turns."""

    url: str = Field(min_length=1, description="http(s) URL; 'env:NAME' and 'file:PATH' are looked up.")
    format: Literal["json", "slack", "grafana"] = Field(
        "json",
        description="json: every field; slack: an incoming webhook; grafana: its /api/annotations.",
    )
    on: tuple[NoticeKind, ...] = Field(tuple(NoticeKind), min_length=1)
    headers: dict[str, str] = Field(
        default_factory=dict, description="Sent along, such as Authorization; 'env:NAME' and 'file:PATH' are looked up."
    )
    timeout_s: float = Field(10.0, gt=0, le=60)


class ControllerConfig(Section):
    """The judge: where it writes and how often it looks."""

    journal: str = Field(
        "~/.local/state/fleet/journal.sqlite3",
        min_length=1,
        description="SQLite file, or postgresql:// URL; 'env:NAME' and 'file:PATH' are looked up.",
    )
    webhooks: dict[PathName, WebhookConfig] = Field(default_factory=dict, max_length=20)
    tick_seconds: float = Field(0.5, gt=0, le=10)
    num_cpus: float = Field(0.2, ge=0)


class FleetConfig(Section):
    """The whole fleet: what `fleet up -f` reads."""

    model: ModelConfig = ModelConfig()
    engine: EngineConfig = EngineConfig()
    paths: dict[PathName, PathConfig] = Field(min_length=1)
    stable: str = "baseline"
    router: RouterConfig = RouterConfig()
    controller: ControllerConfig = ControllerConfig()
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)

    @model_validator(mode="after")
    def _stable_is_a_path(self) -> FleetConfig:
        if self.stable not in self.paths:
            raise ValueError(f"stable '{self.stable}' is not one of the paths: {', '.join(sorted(self.paths))}")
        return self


def load_yaml(path: Path) -> Mapping[str, Any]:
    """The mapping in a YAML file, or a ConfigError that says what is wrong with the file."""
    try:
        value = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must hold a mapping at the top level")
    return value


def load_fleet_config(path: Path) -> FleetConfig:
    """The fleet config in a file, or a ConfigError with every wrong field."""
    try:
        return FleetConfig.model_validate(load_yaml(path))
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain(error)}") from error


def explain(error: ValidationError) -> str:
    """A pydantic error as one line."""
    return "; ".join(problems_in(error))


def problems_in(error: ValidationError) -> list[str]:
    """A pydantic error as one line for each field that is wrong: the field, and what is wrong with it.

    Of a list with a wrong item pydantic also says that it has too few: that is left out.
    """
    parts, found = [], error.errors()
    inner = {item["loc"][:depth] for item in found for depth in range(len(item["loc"]))}
    for item in found:
        if item["type"] == "too_short" and item["loc"] in inner:
            continue
        where = ".".join(str(part) for part in item["loc"]) or "config"
        parts.append(f"{where}: {item['msg'].removeprefix('Value error, ')}")
    return parts


def resolve_secret(value: str) -> str:
    """The secret itself, for 'env:NAME', 'file:PATH' or a literal."""
    if value.startswith("env:"):
        name = value.removeprefix("env:")
        found = os.environ.get(name)
        if not found:
            raise ConfigError(f"environment variable {name} is not set")
        return found
    if value.startswith("file:"):
        path = Path(value.removeprefix("file:")).expanduser()
        try:
            return path.read_text().strip()
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    return value


def cache_folder() -> Path:
    """Where converted models live: $FLEET_CACHE, else $XDG_CACHE_HOME/fleet, else ~/.cache/fleet."""
    chosen = os.environ.get("FLEET_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fleet"


def state_folder() -> Path:
    """Where a running local fleet notes its processes: $FLEET_STATE, else ~/.local/state/fleet."""
    chosen = os.environ.get("FLEET_STATE")
    return Path(chosen) if chosen else Path.home() / ".local" / "state" / "fleet"
