"""A useless draft is still a draft: what it names is what it was drawn from."""

from __future__ import annotations

import pytest

from replicas.drill import spoil
from replicas.speculation.messages import Proposal
from replicas.speculation.rejection import Sparse
from replicas.speculation.tree import Draft

EVEN = Sparse((1, 2, 3, 4), (0.25,) * 4)


@pytest.mark.parametrize(
    ("parents", "distributions", "named"),
    [
        ((), (), ()),
        ((), (EVEN, EVEN), (Sparse.certain(6), Sparse.certain(7))),
        ((-1, -1), (EVEN, EVEN), ()),
    ],
    ids=["coupled", "judged chain", "judged tree"],
)
def test_spoiled_tokens_are_valid_others_and_name_no_distribution_that_they_were_not_drawn_from(
    parents: tuple[int, ...], distributions: tuple[Sparse, ...], named: tuple[Sparse, ...]
) -> None:
    spoiled = spoil(Proposal(1, 1, 3, (1, 2), parents=parents, distributions=distributions), 10)
    assert spoiled.token_ids == (6, 7)
    assert spoiled.distributions == named
    assert Draft(spoiled.token_ids, spoiled.parents, spoiled.distributions).is_sound(10)
