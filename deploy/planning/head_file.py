"""What does a head on disk hold? Its tensors' sizes and the shape of its layer, from headers and config alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from deploy.planning.architecture import Architecture
from fleet.errors import ConfigError
from replicas.compatibility.heads import HeadFiles, HeadUse, compare_head
from replicas.compatibility.layout import recognise
from replicas.compatibility.stored import StoredHead, StoredModel, read_head, read_headers, read_shapes
from replicas.engine.footprint import NARROW, Footprint
from replicas.heads.footprint import head_footprint

EMBEDDING = "embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class HeadOnDisk:
    """A published head as its folder has it."""

    footprint: Footprint
    embedding: int
    """Parameters that a pass looks a row up in, and does not read."""
    config: StoredHead


def read_head_file(
    method: str, folder: str, draft_length: int, target: Architecture, *, is_target_narrow: bool
) -> HeadOnDisk:
    """The head in a folder; `is_target_narrow` as for `head_footprint`.

    Raises ConfigError where there is none of this method, or it does not fit the target.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise ConfigError(f"proposer '{method}:{folder}': no such folder; write '{method}' alone for one of usual size")
    headers = read_headers(path)
    shapes = {name: header.shape for name, header in headers.items()}
    kind = recognise(shapes)
    if kind is None or kind != method:
        raise ConfigError(f"proposer '{method}:{folder}': the folder holds {kind or 'no known kind of proposer'}")
    config = read_head(path)
    sizes = StoredModel(
        hidden_size=target.hidden,
        num_hidden_layers=target.layers,
        vocab_size=target.vocabulary,
        max_position_embeddings=target.context,
    )
    for finding in compare_head(sizes, HeadFiles(kind, config, shapes), HeadUse(draft_length)):
        if not finding.is_ok:
            raise ConfigError(f"proposer '{method}:{folder}' does not fit {target.name}: {finding.problem}")
    narrow = {name for name, header in headers.items() if header.number_format in NARROW}
    footprint = head_footprint(shapes, narrow, is_target_narrow=is_target_narrow)
    return HeadOnDisk(footprint, math.prod(shapes.get(EMBEDDING, (0,))), config)


def cut_head_rows(model: str) -> int | None:
    """Rows of the output layer of a draft model in a folder, where it has fewer than there are tokens."""
    path = Path(model).expanduser()
    if not path.is_dir() or not any(path.glob("*.safetensors")):
        return None
    cut = read_shapes(path).get("d2t")
    return cut[0] if cut else None
