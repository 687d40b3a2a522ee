"""Is a bucket of a cell to be kept, dropped, or neither? A second family of claims, beside that of the cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from deploy.evidence.cell_evidence import CellEvidence
from deploy.evidence.cells import Cell, evidence_of
from deploy.evidence.config import MatrixConfig
from deploy.evidence.pairing import log_gains
from deploy.evidence.slices import Part, slice_objective
from deploy.evidence.verdicts import CellVerdict, judge_cells


@dataclass(frozen=True, slots=True)
class JudgedCell:
    """A cell with what its verdict rests on."""

    cell: Cell
    evidence: CellEvidence
    verdict: CellVerdict


def judge_buckets(
    cells: Sequence[JudgedCell], buckets: Sequence[Sequence[Part]], config: MatrixConfig
) -> list[list[CellVerdict]]:
    """The verdicts on each cell's buckets, in their order.

    The chance that any keep or drop of a bucket is false is at most alpha over all buckets of cells that have several:
    they are corrected for each other and not for the cells, which so lose no power. The only bucket of a cell is the
    cell, with its verdict, which is one of the cells' claims and under their promise; no second claim is made of it.
    """
    claimed = [
        bucket_evidence(judged, part, config)
        for judged, parts in zip(cells, buckets, strict=True)
        if len(parts) > 1
        for part in parts
    ]
    verdicts = iter(judge_cells(claimed, config.judge, config.seed))
    return [
        [next(verdicts) for _ in parts] if len(parts) > 1 else [judged.verdict for _ in parts]
        for judged, parts in zip(cells, buckets, strict=True)
    ]


def bucket_evidence(judged: JudgedCell, part: Part, config: MatrixConfig) -> CellEvidence:
    """From the bucket's own requests; the KV cache and the client are the cell's, which refuses all of it or nothing.

    Nothing is claimed of throughput. It is a block's, in which all buckets run together, so the cell answers for it:
    what one bucket lost of it is no other one's fault.
    """
    of_cell = judged.evidence
    own = evidence_of(
        replace(judged.cell, rounds=part.rounds),
        config,
        has_content=of_cell.has_content,
        remembers=of_cell.remembers,
    )
    return replace(
        own,
        objective=tuple(log_gains(part.rounds, slice_objective(config))),
        throughput=None,
        client_lag_share=of_cell.client_lag_share,
    )
