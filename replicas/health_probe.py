"""A token asked for by the worker itself, to see that the engine still makes some."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fleet.errors import DeadlineExceeded, ReplicaLost
from fleet.generation import GenerationRequest, SamplingParams, StepOutput, StreamFailed
from replicas.engine_thread import EngineThread


class HealthProbe:
    """Owner of one tiny request that goes ahead of the queue."""

    def __init__(self, token_id: int) -> None:
        sampling = SamplingParams(seed=0, max_tokens=1, temperature=0.0, ignore_eos=True)
        self._request = GenerationRequest("health-probe", (token_id,), sampling)
        self._answer: asyncio.Future[StepOutput] = asyncio.get_running_loop().create_future()

    def take(self, outputs: Sequence[StepOutput]) -> None:
        if not self._answer.done():
            self._answer.set_result(outputs[-1])

    async def run(self, engine: EngineThread, seconds: float) -> None:
        """Return once the engine has generated the token. Raises ReplicaLost or DeadlineExceeded."""
        if not engine.is_alive:
            raise ReplicaLost("the engine has ended")
        engine.submit(self._request, self, is_probe=True)
        try:
            answer = await asyncio.wait_for(self._answer, seconds)
        except TimeoutError as error:
            engine.cancel_owner(self)
            raise DeadlineExceeded(f"the engine generated no token within {seconds:.0f} s") from error
        if isinstance(answer, StreamFailed):
            raise ReplicaLost(f"the engine cannot generate a token: {answer.message}")
