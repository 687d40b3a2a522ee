"""What engines may be asked in one step after the other, drawn by Hypothesis."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from replicas.engine.packing import Segment

KV_TOKENS = 200
EXTENT = KV_TOKENS // 4


@dataclass
class Sequences:
    """Four sequences that grow in extents of their own, now by a chain, now by a tree that is then taken back."""

    draw: st.DrawFn
    cached: list[int] = field(default_factory=lambda: [0] * 4)

    def step(self) -> list[Segment]:
        members = self.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True))
        return [self._grown(index) for index in members]

    def _grown(self, index: int) -> Segment:
        parents = tuple(self.draw(st.integers(-1, each - 1)) for each in range(self.draw(st.integers(0, 5))))
        trunk = self.draw(st.integers(0 if parents else 1, 4))
        tokens = tuple(self.draw(st.integers(3, 200)) for _ in range(trunk + len(parents)))
        if self.cached[index] + len(tokens) > EXTENT:
            self.cached[index] = 0
        segment = Segment(index * EXTENT, self.cached[index], tokens, self.draw(st.integers(0, len(tokens))), parents)
        self.cached[index] += self.draw(st.integers(0, trunk))
        return segment


@st.composite
def growing(draw: st.DrawFn) -> list[list[Segment]]:
    sequences = Sequences(draw, [0, draw(st.integers(0, 40)), 0, 0])
    prompt = [Segment(EXTENT, 0, tuple(range(20, 20 + sequences.cached[1])), 1)] if sequences.cached[1] else []
    return [prompt] * bool(prompt) + [sequences.step() for _ in range(draw(st.integers(1, 4)))]
