"""What does a head on disk hold? Its tensors' sizes and the shape of its layer, from headers and config alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from deploy.planning.architecture import Architecture
from fleet.errors import ConfigError
from replicas.compatibility.heads import HeadFiles, HeadUse, compare_head
from replicas.compatibility.layout import recognise
from replicas.compatibility.stored import StoredHead, StoredModel, read_head, read_shapes

INDEXES = ("d2t", "t2d", "token_map")
"""Tables of token ids, which are no parameters."""
EMBEDDING = "embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class HeadOnDisk:
    """A published head as its folder has it."""

    parameters: int
    embedding: int
    """Those of them that a pass looks a row up in, and does not read."""
    mapped_tokens: int
    """The target's tokens that its `d2t` leads to; 0 where it has none."""
    config: StoredHead


def read_head_file(method: str, folder: str, draft_length: int, target: Architecture) -> HeadOnDisk:
    """The head in a folder. Raises ConfigError where there is none of this method, or it does not fit the target."""
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise ConfigError(f"proposer '{method}:{folder}': no such folder; write '{method}' alone for one of usual size")
    shapes = read_shapes(path)
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
    parameters = {name: math.prod(shape) for name, shape in shapes.items() if name not in INDEXES}
    mapped = math.prod(shapes.get("d2t", (0,)))
    return HeadOnDisk(sum(parameters.values()), parameters.get(EMBEDDING, 0), mapped, config)
