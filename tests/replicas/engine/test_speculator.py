"""What the engine learns from a proposer, and what it does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from fleet.generation import GenerationRequest, Round
from replicas.engine.model import Forward
from replicas.engine.packing import Segment
from replicas.speculation.messages import Proposal
from replicas.speculation.proposer import ProposerHealth, ProposerState, Want
from tests.fake_model import FakeModel
from tests.fakes import ManualClock
from tests.replicas.engine.requests import GREEDY, request
from tests.replicas.engine.rig import MAX_DRAFT, KnowingProposer, Rig, fake_twin

OUTAGE_STEPS = 80


class TimedModel(FakeModel):
    """Takes 20 ms for a pass, and 2 ms for every row."""

    clock = ManualClock()

    def forward(self, segments: Sequence[Segment]) -> Forward:
        self.clock.advance(0.02 + 0.002 * sum(len(segment.token_ids) for segment in segments))
        return super().forward(segments)


class FallibleProposer(KnowingProposer):
    """Answers within 2 ms, or is gone and answers nothing."""

    clock = ManualClock()
    health = ProposerHealth.HEALTHY

    def __init__(self, requests: Sequence[GenerationRequest]) -> None:
        super().__init__(requests, fake_twin)

    def propose(self, wants: Sequence[Want]) -> Mapping[int, Proposal]:
        if self.health is not ProposerHealth.HEALTHY:
            return {}
        self.clock.advance(0.002)
        return super().propose(wants)

    def state(self) -> ProposerState:
        return ProposerState(self.health, 0.0, 0.0)


@pytest.mark.parametrize("health", [ProposerHealth.LOST, ProposerHealth.DEGRADED])
def test_a_proposer_that_was_gone_for_a_while_is_trusted_as_before(health: ProposerHealth) -> None:
    requests = [request(name, replace(GREEDY, max_tokens=200, ignore_eos=True)) for name in "ab"]
    model, proposer = TimedModel(max_model_len=1000), FallibleProposer(requests)
    rig = Rig(model, proposer=proposer, is_adaptive=True)
    model.clock = proposer.clock = rig.clock
    rig.submit(*requests)

    def rounds(steps: int) -> list[Round]:
        before = [len(result.chunks) for result in rig.results.values()]
        for _ in range(steps):
            rig.step()
        results = zip(rig.results.values(), before, strict=True)
        return [chunk.round for result, seen in results for chunk in result.chunks[seen:] if chunk.round]

    assert {round_.drafted for round_ in rounds(12)[-2:]} == {MAX_DRAFT}
    proposer.health = health
    outage = rounds(OUTAGE_STEPS)
    assert not any(round_.drafted for round_ in outage)
    assert sum(round_.late for round_ in outage) >= 0.95 * len(outage), "who watches must not take this for a choice"
    proposer.health = ProposerHealth.HEALTHY
    assert {round_.drafted for round_ in rounds(6)[2:]} == {MAX_DRAFT}
