"""What did the planner expect of a matrix's cells? The curve that the report draws beside what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from deploy.evidence.config import PredictConfig
from deploy.evidence.result import CellResult, Prediction
from deploy.planning.acceptance import Acceptance
from deploy.planning.architecture import Architecture
from deploy.planning.config_file import find_architecture
from deploy.planning.hardware import Gpu, GpuOptions, choose_gpu
from deploy.planning.kv_cache import kv_cache
from deploy.planning.proposers import Proposer, build_proposer, parse_proposer
from deploy.planning.roofline import TARGET_OVERHEAD_SECONDS, Load, PassCost, model_cost
from deploy.planning.speedup import Pairing, speed_up

KV_BYTES = 2.0
DEFAULT_LENGTH = 4


class Predictor:
    """Everything that a prediction needs but the acceptance, which the matrix measures."""

    def __init__(self, config: PredictConfig) -> None:
        """Raises `ConfigError` where the model, the card or a proposer is not known: better before a run than after."""
        self._config = config
        self._gpu: Gpu = choose_gpu(GpuOptions(config.gpu, config.memory, config.bandwidth, config.tflops))
        model: Architecture = find_architecture(config.model)
        cache = kv_cache(model, KV_BYTES, config.tensor_parallel)
        number_format = config.dtype or model.stored_format
        self._cost: PassCost = model_cost(model, number_format, cache, config.tensor_parallel, TARGET_OVERHEAD_SECONDS)
        self._proposers: dict[str, Proposer] = {
            path: build_proposer(
                parse_proposer(text, draft_length=DEFAULT_LENGTH, acceptance=None), model, config.tensor_parallel
            )
            for path, text in config.proposers.items()
        }

    def predictions(self, cells: Iterable[CellResult]) -> Iterator[Prediction]:
        """For every closed-loop cell of a candidate with a known proposer that drafted anything."""
        for cell in cells:
            proposer, accepted = self._proposers.get(cell.candidate), cell.candidate_figures.acceptance
            if proposer is None or accepted is None or cell.level.concurrency is None:
                continue
            load = Load(math.ceil(cell.level.concurrency / self._config.replicas), self._config.context)
            share = cell.candidate_figures.server.drafting_share
            acceptance = Acceptance(per_position=accepted.by_position or (0.0,), drafting_share=share)
            is_remote = proposer.spec.method == "draft_model"
            round_trip = self._config.round_trip_ms / 1000 if is_remote else 0.0
            pairing = Pairing(self._gpu, self._cost, proposer, acceptance, round_trip)
            yield Prediction(cell.candidate, cell.condition, speed_up(pairing, load, proposer.spec.draft_length))
