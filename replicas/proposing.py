"""Which proposer does a path's config ask for?"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from fleet.clock import Clock
from fleet.config import DrillConfig, ModelConfig, SpeculativeConfig
from fleet.traffic import DRAFT_LINK_EVENTS
from replicas.drill import DrilledProposer
from replicas.engine.features import FeatureReader
from replicas.engine.judging import was_drawn
from replicas.engine.packing import Segment
from replicas.engine.sampling import Sampler
from replicas.engine.speculator import SpeculationPolicy
from replicas.heads.loading import PublishedHead
from replicas.heads.warming import warm_up
from replicas.speculation.ngram import NgramProposer
from replicas.speculation.pairing import Identity
from replicas.speculation.proposer import Proposer
from replicas.speculation.suffix import SuffixLimits, SuffixProposer
from replicas.speculation.target_session import TargetSettings
from replicas.target_model import TargetModel
from replicas.verify_rpc.server import VerifyServer


@dataclass(frozen=True, slots=True)
class Proposing:
    """A proposer with how it is to be used, and the socket it is fed by, if any."""

    proposer: Proposer
    policy: SpeculationPolicy
    reader: FeatureReader | None = None
    """The proposer, where it drafts from the target's features."""
    verify_server: VerifyServer | None = None
    verify_address: str | None = None

    def draft_link(self) -> dict[str, int]:
        """What happened on the verify stream so far, by event; empty where there is none."""
        if self.verify_server is None:
            return {}
        counters = asdict(self.verify_server.proposer.counters)
        return {event: counters[event] for event in DRAFT_LINK_EVENTS}

    async def close(self) -> None:
        if self.verify_server is not None:
            await self.verify_server.close()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a proposer of the target's own process is to work."""

    target: TargetModel
    sequences: int
    """So many can run at once."""
    drill: DrillConfig | None
    clock: Clock


def in_process(config: SpeculativeConfig, head: PublishedHead | None, place: Place) -> Proposing:
    """The proposer of a method that needs no draft worker; `head` is what it read of its checkpoint, if it has one.

    A look-up that finds nothing proposes nothing, and a head may have no room: neither is late.
    """
    if head is not None:
        return _drafting_head(head, place)
    policy = SpeculationPolicy(config.num_speculative_tokens, config.adaptive, must_answer=False)
    return Proposing(_drilled(look_up(config), place), policy)


def look_up(config: SpeculativeConfig) -> Proposer:
    """The proposer of a method that drafts from the text itself."""
    if config.method == "ngram":
        return NgramProposer(config.prompt_lookup_min, config.prompt_lookup_max)
    limits = SuffixLimits(
        config.suffix_decoding_max_tree_depth,
        config.suffix_decoding_max_spec_factor,
        config.suffix_decoding_min_token_prob,
    )
    return SuffixProposer(limits, config.suffix_decoding_max_cached_requests)


def _drafting_head(published: PublishedHead, place: Place) -> Proposing:
    """EAGLE, EAGLE-3 or Medusa, warmed up. The model's cache must not be in use."""
    target = place.target
    sampler = Sampler(target.vocab_size, target.tokenizer.eos_token_ids)
    reader, tree = published.on(target.model, target.name, sampler, place.clock)
    features = target.model.forward([Segment(0, 0, (0,), 1)]).features
    assert features is not None, "the target taps what the head reads"
    warm_up(reader, features, sequences=place.sequences, depth=tree.depth)
    level_rows = tuple(len(tree.level(depth)) for depth in range(1, tree.depth + 1))
    policy = SpeculationPolicy(tree.depth, published.config.adaptive, must_answer=False, level_rows=level_rows)
    return Proposing(_drilled(reader, place), policy, reader)


def _drilled(proposer: Proposer, place: Place) -> Proposer:
    return proposer if place.drill is None else DrilledProposer(proposer, place.drill, place.target.vocab_size)


async def remote_draft(
    config: SpeculativeConfig, host: str, model: ModelConfig, target: TargetModel, clock: Clock
) -> Proposing:
    """A draft worker that will dial in; until then, and whenever it is gone, the target decodes alone."""
    identity = Identity(
        model=model.model,
        tokenizer_hash=target.tokenizer.content_hash,
        vocab_size=target.tokenizer.vocab_size,
        max_model_len=target.model.max_model_len,
        wants_distributions=config.acceptance == "rejection",
    )
    settings = TargetSettings(
        identity,
        config.deadline_floor_ms / 1000,
        config.deadline_ceiling_ms / 1000,
        config.draft_ahead,
        was_drawn if identity.wants_distributions else None,
    )
    server = VerifyServer(settings, clock)
    address = await server.start(host, config.tls)
    policy = SpeculationPolicy(config.num_speculative_tokens, config.adaptive, must_answer=True)
    return Proposing(server.proposer, policy, verify_server=server, verify_address=address)
