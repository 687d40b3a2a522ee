from hypothesis import given
from hypothesis import strategies as st

from fleet.traffic import SamplingMode
from fleet.traffic_kinds import PROMPT_EDGES, kind_of, shortest_prompt


@given(st.integers(0, 20_000), st.integers(0, 1000), st.sampled_from(SamplingMode))
def test_no_prompt_of_a_kind_is_shorter_than_its_shortest(prompt: int, output: int, sampling: SamplingMode) -> None:
    kind = kind_of(prompt, output, sampling)
    shortest = shortest_prompt(kind)
    assert shortest <= prompt
    assert kind_of(shortest, output, sampling) == kind
    assert shortest in (0, *(edge + 1 for edge in PROMPT_EDGES))
