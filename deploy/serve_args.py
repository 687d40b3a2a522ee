"""What each Serve application is told: the typed `args` of the builders in `serve_app.py`."""

from __future__ import annotations

from pydantic import Field

from fleet.config import (
    ControllerConfig,
    DraftResources,
    DrillConfig,
    EngineConfig,
    ModelConfig,
    PathName,
    RouterConfig,
    Section,
    SpeculativeConfig,
)


class PathArgs(Section):
    """One path. Everything here restarts its replicas when it changes; the number of replicas is not here."""

    path: PathName
    model: ModelConfig = ModelConfig()
    engine: EngineConfig = EngineConfig()
    speculative: SpeculativeConfig | None = None
    draft: DraftResources = DraftResources()
    drill: DrillConfig | None = None
    token_host: str | None = Field(
        None, description="Where token and verify sockets listen; None = the node's address."
    )


class RouterArgs(Section):
    """The front: which model's tokenizer to use and between which paths to choose."""

    model: ModelConfig = ModelConfig()
    paths: tuple[PathName, ...] = Field(min_length=1)
    stable: PathName
    router: RouterConfig = RouterConfig()


class PathSummary(Section):
    """What the controller knows of a path before the first replica reports."""

    replicas: int = Field(ge=1)
    is_speculative: bool
    gpus: float = Field(0.0, ge=0, description="Of one replica, its draft worker's included.")


class ControllerArgs(Section):
    """The judge: the paths it may roll out, and which one is stable on the very first start."""

    model: ModelConfig = ModelConfig()
    paths: dict[PathName, PathSummary] = Field(min_length=1)
    stable: PathName
    controller: ControllerConfig = ControllerConfig()
