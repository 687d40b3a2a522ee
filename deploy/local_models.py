"""Where do a fleet's models lie on this machine? Every one is checked and found before a process needs it."""

from __future__ import annotations

from deploy.manifest import model_name
from fleet.config import FleetConfig
from replicas.compatibility.check import pair_of, proposer_folder, require_paths
from replicas.model_store import Progress, resolve_model


def with_local_models(config: FleetConfig, progress: Progress) -> FleetConfig:
    """The config with every model as a local folder, so that the fleet's processes only have to read it.

    Raises ConfigError in one line where a model is not found, or does not fit its target.
    """
    require_paths(config, progress)
    target = {
        "model": str(resolve_model(config.model, progress)),
        "served_name": model_name(config.model),
        "revision": None,
    }
    paths = dict(config.paths)
    for name, path in paths.items():
        if path.speculative is not None and path.speculative.model is not None:
            folder = proposer_folder(pair_of(config.model, path.speculative), progress)
            speculative = path.speculative.model_copy(update={"model": str(folder), "revision": None})
            paths[name] = path.model_copy(update={"speculative": speculative})
    return config.model_copy(update={"model": config.model.model_copy(update=target), "paths": paths})
