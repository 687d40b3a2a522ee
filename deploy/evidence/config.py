"""What may a matrix.yaml say? Every key with its bounds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationError, model_validator

from deploy.connection import DEFAULT_URL
from fleet.config import PathName, Section, explain
from fleet.errors import ConfigError

AUTO: Final = "auto"
ROUTED: Final = "routed"
"""A candidate that is no path: requests without a path of their own, as the router decides."""
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,39}$")]
Share = Annotated[float, Field(ge=0, le=1)]


def _named_secret(value: str) -> str:
    if not value.startswith(("env:", "file:")):
        raise ValueError("say where it is, 'env:NAME' or 'file:PATH': what stands here is written into every report")
    return value


def _plain_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(
            "give no user, password, query or fragment: it is written into every report; keys have options of their own"
        )
    return value


SecretName = Annotated[str, AfterValidator(_named_secret)]
BaseUrl = Annotated[str, Field(pattern=r"^https?://"), AfterValidator(_plain_url)]


class SamplingConfig(Section):
    """How the answers of one sampling mode are drawn."""

    temperature: float = Field(ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=1)
    min_p: float | None = Field(None, ge=0, le=1)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    def fields(self) -> dict[str, Any]:
        """As the API takes them."""
        return self.model_dump(exclude_none=True)


class WorkloadConfig(Section):
    """What is asked."""

    prompts: Path | None = Field(None, description="Prompts, ShareGPT or captured requests; None = those shipped.")
    key: SecretName | None = Field(None, description="Opens encrypted captured requests: 'env:NAME' or 'file:PATH'.")
    lengths: Path | None = Field(None, description="Instead of prompts: a trace whose lengths are met with filler.")
    categories: tuple[str, ...] = Field((), description="Only these; empty means all.")
    max_tokens: int = Field(64, ge=2, le=65536, description="Longest answer; a captured request's own limit is lower.")
    max_prompt_tokens: int = Field(4096, ge=16, description="Of filler: longer prompts of a trace are cut to this.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.prompts is not None and self.lengths is not None:
            raise ValueError("give prompts or lengths, not both")
        return self


class LoadConfig(Section):
    """How hard it is asked: closed loop by concurrency, open loop by rate or by the arrivals of a trace."""

    concurrency: tuple[Annotated[int, Field(ge=1, le=100_000)], ...] | Literal["auto"] | None = Field(
        None, description="Requests held open; auto finds low, medium and peak; None = auto, unless a rate is given."
    )
    max_concurrency: int = Field(64, ge=1, le=100_000, description="Where the search for the peak ends.")
    rate: tuple[Annotated[float, Field(gt=0)], ...] = Field((), description="Requests begun per second.")
    burstiness: float = Field(1.0, gt=0, le=100, description="Gamma shape of the gaps: 1 is Poisson, less is burstier.")
    trace: Path | None = Field(None, description="Its arrivals are replayed: Azure, BurstGPT, Mooncake or a capture.")
    time_scale: float = Field(1.0, gt=0, description="Gaps of the trace are multiplied by this; 0.5 is twice as fast.")
    max_open: int | None = Field(None, ge=1, description="Open loop: a request waits while so many are open.")

    @property
    def closed(self) -> tuple[int, ...] | Literal["auto"]:
        """The closed loop's concurrencies."""
        if self.concurrency is not None:
            return self.concurrency
        return () if self.rate or self.trace else AUTO

    @model_validator(mode="after")
    def _something_once(self) -> Self:
        if not (self.closed or self.rate or self.trace):
            raise ValueError("give a concurrency, a rate or a trace")
        for name, values in (("concurrency", self.closed), ("rate", self.rate)):
            if values != AUTO and len(set(values)) != len(values):
                raise ValueError(f"a {name} is named twice")
        return self


class JudgeConfig(Section):
    """When a cell is kept, dropped, or neither."""

    objective: Literal["tpot", "e2e", "throughput"] = "tpot"
    min_effect: float = Field(0.05, ge=0, le=1, description="A keep must be better by more than this.")
    alpha: float = Field(0.05, gt=0, le=0.2, description="Chance of any false keep or drop in the whole matrix.")
    max_ttft_increase: float = Field(0.15, ge=0, le=10)
    ttft_slack_s: float = Field(0.05, ge=0, le=10, description="On top: a difference that nobody notices.")
    max_throughput_decrease: Share = 0.05
    max_error_increase: Share = Field(0.005, description="Share of the requests.")
    max_kv_usage: Share = 0.95
    max_degenerate: Share = Field(0.2, description="Share of answers that repeat themselves; they draft too well.")
    min_greedy_equal: Share = Field(0.8, description="Share of greedy answers that must equal the baseline's.")
    max_client_lag: float = Field(0.2, gt=0, description="The client's p95 lateness, as a share of the median tpot.")


class PredictConfig(Section):
    """What `fleet plan` has to know for a predicted curve beside the measured one."""

    model: str = Field(min_length=1, description="Folder, config.json, or a model whose facts are shipped.")
    proposers: dict[PathName, str] = Field(min_length=1, description="Candidate -> METHOD[:MODEL][,k=4].")
    gpu: str | None = Field(None, description="Such as H200; or its memory, bandwidth and tflops.")
    memory: str | None = None
    bandwidth: str | None = None
    tflops: float | None = Field(None, gt=0)
    dtype: str | None = None
    tensor_parallel: int = Field(1, ge=1, le=64)
    replicas: int = Field(1, ge=1, description="Of each path: they share what is open.")
    context: int = Field(512, ge=1, description="Tokens that a sequence has cached.")
    round_trip_ms: float = Field(0.5, ge=0, description="Between target and draft worker.")


class MatrixConfig(Section):
    """One load matrix: candidates × load × sampling, each beside the baseline."""

    url: BaseUrl = DEFAULT_URL
    model: str | None = Field(None, min_length=1, description="Name in the API; None = the one served.")
    baseline: PathName = "baseline"
    candidates: tuple[PathName, ...] = Field(
        ("speculative",), min_length=1, description="Paths; 'routed' leaves the choice to the router."
    )
    sampling: dict[Name, SamplingConfig] = Field(
        {"greedy": SamplingConfig(temperature=0), "sampled": SamplingConfig(temperature=0.8)}, min_length=1
    )
    workload: WorkloadConfig = WorkloadConfig()
    load: LoadConfig = LoadConfig()
    judge: JudgeConfig = JudgeConfig()
    predict: PredictConfig | None = None
    rounds: int = Field(10, ge=1, le=1000, description="Each runs every path once, forwards and backwards in turn.")
    requests: int = Field(6, ge=1, le=10_000, description="Measured requests of a block: one path in one round.")
    seed: int = Field(0, ge=0, lt=2**31)
    timeout_s: float = Field(120.0, gt=0, description="Longest wait for the next piece of an answer.")
    pause_s: float = Field(1.0, ge=0, description="Rest after a block, until the server's counters have settled.")

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if len(set(self.candidates)) != len(self.candidates):
            raise ValueError("a candidate is named twice")
        if self.baseline == ROUTED:
            raise ValueError(f"the baseline must be a path; '{ROUTED}' is what the router decides")
        return self


def parse_matrix(value: Mapping[str, Any], where: str) -> MatrixConfig:
    """The config, or a `ConfigError` with every wrong key."""
    try:
        return MatrixConfig.model_validate(value)
    except ValidationError as error:
        raise ConfigError(f"{where}: {explain(error)}") from error
