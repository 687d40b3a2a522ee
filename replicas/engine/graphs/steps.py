"""Runs a step as a graph where it has a shape for one: recorded at first use, the least recently used ones dropped."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from replicas.engine.decoder import Decoder, States
from replicas.engine.graphs.attention import GraphAttention
from replicas.engine.graphs.inputs import GraphInputs
from replicas.engine.graphs.recording import NotRecorded, Recorder, RecordingFailed, Step
from replicas.engine.graphs.shape import MOST_TOKENS, GraphShape, shape_of
from replicas.engine.kv_arena import KvArena
from replicas.engine.span import Span

logger = logging.getLogger(__name__)

MOST_GRAPHS = 192
GATHERED_BYTES = 256 * 2**20
"""Keys and values that a step may gather for a layer. Copying more takes longer than launching a layer's kernels, so a
graph would gain nothing."""
DRIVER_BYTES = 2**20
"""What the driver takes on the device for one graph: a thousand kernels' parameters. Assumed, not measured."""
RESERVED_BYTES = 2 * GATHERED_BYTES + MOST_GRAPHS * DRIVER_BYTES
"""Of all graphs of one model: they gather into one pool, and the run before a recording gathers outside of it."""


@dataclass(frozen=True, slots=True)
class _Graph:
    inputs: GraphInputs
    replay: Step | None
    """None where it could not be recorded."""


class StepGraphs:
    """The graphs of one decoder and its arena, whose place `scratch` belongs to no sequence."""

    def __init__(self, decoder: Decoder, arena: KvArena, recorder: Recorder, scratch: int) -> None:
        self._decoder = decoder
        self._arena = arena
        self._recorder = recorder
        self._scratch = scratch
        self._most_places = GATHERED_BYTES // arena.bytes_per_layer_place
        self._results = _room_for_results(decoder)
        self._graphs: OrderedDict[GraphShape, _Graph] = OrderedDict()
        self._can_record = True
        self.recordings = 0
        """How often a step was recorded, or could not be: each took far longer than a step does."""

    def shape(self, spans: Sequence[Span]) -> GraphShape | None:
        """That of the graph for these spans; None where the step is not one for a graph."""
        return shape_of(spans, self._most_places)

    def run(self, spans: Sequence[Span], token_ids: Sequence[int]) -> States | None:
        """What the layers make of the packed tokens, one row each; None where no graph does."""
        shape = self.shape(spans)
        if shape is None:
            return None
        graph = self._graphs.get(shape)
        if graph is not None:
            graph.inputs.fill(spans, token_ids)
        elif self._can_record:
            graph = self._recorded(shape, spans, token_ids)
        else:
            return None
        self._graphs.move_to_end(shape)
        if graph.replay is None:
            return None
        states = graph.replay()
        rows = graph.inputs.packed(len(token_ids))
        tapped = None if states.tapped is None else states.tapped.index_select(0, rows)
        return States(states.last.index_select(0, rows), tapped)

    def _recorded(self, shape: GraphShape, spans: Sequence[Span], token_ids: Sequence[int]) -> _Graph:
        """A new graph, filled with this step: what it is run with while it is recorded must be real."""
        self.recordings += 1
        inputs = GraphInputs(shape, self._scratch, self._decoder.embedding.device)
        inputs.fill(spans, token_ids)

        def step() -> States:
            attention = GraphAttention(self._decoder.config, self._arena, inputs)
            states = self._decoder(inputs.token_ids.flatten(), inputs.positions.flatten(), attention)
            return _copied(states, self._results)

        replay = None
        try:
            replay = self._recorder.record(step)
        except RecordingFailed as error:
            self._can_record = False
            logger.error("no graphs from now on, beyond the %d recorded: %s", len(self._graphs), error)
        except NotRecorded as error:
            logger.warning("no graph of %s, such steps are launched one operation at a time: %s", shape, error)
        self._graphs[shape] = _Graph(inputs, replay)
        # Only now: recording has waited for whatever replay was under way.
        if len(self._graphs) > MOST_GRAPHS:
            self._graphs.popitem(last=False)
        return self._graphs[shape]


def _room_for_results(decoder: Decoder) -> States:
    """What all graphs leave their states in: of the pool, nothing outlives a replay, so all of it is shared."""
    width = decoder.config.hidden_size
    last = decoder.embedding.new_empty((MOST_TOKENS, width))
    tapped = decoder.embedding.new_empty((MOST_TOKENS, len(decoder.taps) * width)) if decoder.taps else None
    return States(last, tapped)


def _copied(states: States, room: States) -> States:
    count = len(states.last)
    if states.tapped is None or room.tapped is None:
        return States(room.last[:count].copy_(states.last), None)
    return States(room.last[:count].copy_(states.last), room.tapped[:count].copy_(states.tapped))
