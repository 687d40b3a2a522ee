from collections.abc import Callable

import pytest

from deploy.evidence.degenerate import is_degenerate, repetition
from deploy.evidence.levels import Probed, find_levels, medians, next_probe

MAX_LAG = 0.2


def searched(
    throughput: Callable[[int], float], limit: int = 64, lag: Callable[[int], float] = lambda n: 0.0
) -> list[Probed]:
    seen: list[Probed] = []
    while (following := next_probe(seen, limit, MAX_LAG)) is not None:
        seen.append(Probed(following, throughput(following), lag(following)))
    return seen


@pytest.mark.parametrize(
    ("throughput", "tried", "levels"),
    [
        (lambda n: 100.0 * min(n, 8), [1, 2, 4, 8, 16], {"low": 1, "medium": 3, "peak": 8}),
        (lambda n: 100.0, [1, 2], {"peak": 1}),
        (lambda n: 100.0 * min(n, 2), [1, 2, 4], {"low": 1, "peak": 2}),
        (lambda n: 100.0 * n if n < 16 else 50.0, [1, 2, 4, 8, 16], {"low": 1, "medium": 3, "peak": 8}),
        (lambda n: 100.0 * n, [1, 2, 4, 8, 16, 32, 64], {"low": 1, "medium": 8, "peak": 64}),
    ],
)
def test_the_search_ends_where_throughput_stops_growing(
    throughput: Callable[[int], float], tried: list[int], levels: dict[str, int]
) -> None:
    seen = searched(throughput)
    assert [probe.concurrency for probe in seen] == tried
    assert find_levels(seen, MAX_LAG) == levels


def test_the_search_ends_at_its_limit() -> None:
    assert [probe.concurrency for probe in searched(lambda n: float(n), limit=5)] == [1, 2, 4, 5]


def test_the_search_ends_where_the_client_is_the_bottleneck_and_takes_no_level_from_there() -> None:
    seen = searched(lambda n: 100.0 * n, lag=lambda n: 0.01 * n * n)
    assert [probe.concurrency for probe in seen] == [1, 2, 4, 8]
    assert find_levels(seen, MAX_LAG) == {"low": 1, "medium": 2, "peak": 4}
    assert find_levels(searched(lambda n: 100.0 * n, lag=lambda n: 0.9), MAX_LAG) == {"peak": 1}


@pytest.mark.parametrize("hiccup", [0.0, 10_000.0])
def test_one_block_that_is_off_moves_nothing(hiccup: float) -> None:
    probes = [Probed(n, 100.0 * n, 0.0) for n in (1, 2, 4) for _ in range(2)]
    assert medians(probes) == []
    probes += [Probed(2, hiccup, 9.9), Probed(1, 100.0, 0.0), Probed(4, 400.0, 0.0)]
    assert medians(probes) == [Probed(n, 100.0 * n, 0.0) for n in (1, 2, 4)]


def test_only_an_answer_that_goes_in_circles_is_degenerate() -> None:
    assert is_degenerate("I am sorry, I cannot do that. " * 8)
    assert is_degenerate("the the " * 20)
    assert not is_degenerate("the the " * 4)
    assert not is_degenerate(
        "The sky is blue because air scatters short waves more than long ones, and our eyes take the mixture of what "
        "arrives from all sides for a pale blue; near the horizon it is paler still, as the way is longer there."
    )
    assert repetition("") == 0.0
    assert repetition("one two three four") == 0.0
    assert repetition("a b c d a b c d") == pytest.approx(1 / 5)
