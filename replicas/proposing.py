"""Which proposer does a path's config ask for?"""

from __future__ import annotations

from dataclasses import dataclass

from fleet.clock import Clock
from fleet.config import DrillConfig, ModelConfig, SpeculativeConfig
from replicas.drill import DrilledProposer
from replicas.engine.speculator import SpeculationPolicy
from replicas.speculation.ngram import NgramProposer
from replicas.speculation.pairing import Identity
from replicas.speculation.proposer import Proposer
from replicas.speculation.target_session import TargetSettings
from replicas.target_model import TargetModel
from replicas.verify_rpc.server import VerifyServer


@dataclass(frozen=True, slots=True)
class Proposing:
    """A proposer with how it is to be used, and the socket it is fed by, if any."""

    proposer: Proposer
    policy: SpeculationPolicy
    verify_server: VerifyServer | None = None
    verify_address: str | None = None

    async def close(self) -> None:
        if self.verify_server is not None:
            await self.verify_server.close()


def prompt_lookup(config: SpeculativeConfig, drill: DrillConfig | None, target: TargetModel) -> Proposing:
    """Prompt lookup in this process; where nothing matches there is no proposal, and none is late."""
    proposer: Proposer = NgramProposer(config.prompt_lookup_min, config.prompt_lookup_max)
    if drill is not None:
        proposer = DrilledProposer(proposer, drill, target.vocab_size)
    return Proposing(proposer, SpeculationPolicy(config.num_speculative_tokens, config.adaptive, must_answer=False))


async def remote_draft(
    config: SpeculativeConfig, host: str, model: ModelConfig, target: TargetModel, clock: Clock
) -> Proposing:
    """A draft worker that will dial in; until then, and whenever it is gone, the target decodes alone."""
    identity = Identity(
        model=model.model,
        tokenizer_hash=target.tokenizer.content_hash,
        vocab_size=target.tokenizer.vocab_size,
        max_model_len=target.model.max_model_len,
    )
    settings = TargetSettings(
        identity, config.deadline_floor_ms / 1000, config.deadline_ceiling_ms / 1000, config.draft_ahead
    )
    server = VerifyServer(settings, clock)
    address = await server.start(host, config.tls)
    policy = SpeculationPolicy(config.num_speculative_tokens, config.adaptive, must_answer=True)
    return Proposing(server.proposer, policy, server, address)
