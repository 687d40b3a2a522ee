"""What is a kind of proposer to the training loop? Its file's tensors, a loss, and what it would have drafted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from deploy.train.batches import Batch
from deploy.train.settings import HeadSettings
from deploy.train.target import TargetWeights
from deploy.train.vocabulary import DraftVocabulary
from replicas.heads.checkpoint import Checkpoint

INITIAL_RANGE = 0.02
"""Standard deviation of weights that start at random, as in Llama."""


@dataclass(frozen=True, slots=True)
class Losses:
    """`total` is what is minimised; the parts are for people."""

    total: Tensor
    parts: Mapping[str, Tensor]


class Trainee(Protocol):
    """A network under training."""

    depth: int
    """Drafted positions that it is measured at."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """What is trained. Each shares its memory with a tensor of the checkpoint that the trainee was made from."""

    def losses(self, batch: Batch, noise: torch.Generator) -> Losses: ...

    def agreement(self, batch: Batch) -> Tensor:
        """bool [n, depth], as `acceptance.Agreement`; rows are only asked about where the answer is."""


class Method(Protocol):
    """A kind of proposer: how it begins, and how it is trained."""

    name: str
    """As in the key `method` of a path's speculation."""

    def taps(self, layers: int) -> tuple[int, ...]:
        """The target's states that it learns from, by the layer they enter; the final state comes last."""

    def vocabulary_size(self, vocab_size: int) -> int:
        """How many of the target's tokens it can draft."""

    def initial(self, weights: TargetWeights, vocabulary: DraftVocabulary) -> Checkpoint:
        """Config and tensors, float32 on the training device, exactly as they will be published."""

    def trainee(self, checkpoint: Checkpoint, weights: TargetWeights, vocabulary: DraftVocabulary) -> Trainee:
        """The network whose parameters are the checkpoint's tensors; ConfigError where they do not fit the target."""


def distillation(student: Tensor, teacher: Tensor) -> Tensor:
    """Cross-entropy of the student's distributions under the teacher's, natural log: logits [n, v] twice to [n]."""
    return -(teacher.softmax(-1) * student.log_softmax(-1)).sum(-1)


def mean(values: Tensor) -> Tensor:
    """The mean, and 0 where there is nothing."""
    return values.sum() / max(1, values.numel())


def uniform_noise(states: Tensor, width: float, noise: torch.Generator) -> Tensor:
    """Uniform in ± `width` times the states' root mean square, drawn on the CPU so that every device gets the same."""
    drawn = torch.rand(states.shape, generator=noise).to(states.device) * 2 - 1
    return drawn * width * states.square().mean().sqrt()


def random_tensors(shapes: Mapping[str, tuple[int, ...]], seed: int, device: torch.device) -> dict[str, Tensor]:
    """Matrices at random, vectors (the norms' weights) at one."""
    generator = torch.Generator().manual_seed(seed)

    def initial(shape: tuple[int, ...]) -> Tensor:
        return torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * INITIAL_RANGE

    return {name: initial(shape).to(device) for name, shape in shapes.items()}


def head_config(weights: TargetWeights, settings: HeadSettings) -> dict[str, Any]:
    """The Llama config of a one-layer head as wide as the target."""
    config = weights.config
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": settings.intermediate or config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.layers[-1].rope.rope_theta,
        "max_position_embeddings": min(settings.context, config.max_position_embeddings),
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": False,
        "base_model_name_or_path": settings.target,
    }


def layer_shapes(prefix: str, config: Mapping[str, Any], input_width: int) -> dict[str, tuple[int, ...]]:
    """Tensors of a Llama layer whose attention reads rows of `input_width`, without its input norm."""
    hidden, intermediate = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    return {
        f"{prefix}.self_attn.q_proj.weight": (queries, input_width),
        f"{prefix}.self_attn.k_proj.weight": (keys, input_width),
        f"{prefix}.self_attn.v_proj.weight": (keys, input_width),
        f"{prefix}.self_attn.o_proj.weight": (hidden, queries),
        f"{prefix}.mlp.gate_proj.weight": (intermediate, hidden),
        f"{prefix}.mlp.up_proj.weight": (intermediate, hidden),
        f"{prefix}.mlp.down_proj.weight": (hidden, intermediate),
        f"{prefix}.post_attention_layernorm.weight": (hidden,),
    }


def chain_agreement(
    batch: Batch,
    depth: int,
    states: Tensor,
    advance: Callable[[Tensor, Tensor], Tensor],
    draft: Callable[[Tensor], Tensor],
) -> Tensor:
    """Agreement of a head that goes on from its own output: bool [n, depth].

    `advance(tokens, states)` gives the states of the tokens [n], `draft(states)` the target's ids drafted behind them.
    """
    agreed = torch.zeros(len(batch.tokens), depth, dtype=torch.bool, device=batch.tokens.device)
    for step in range(depth):
        states = advance(batch.tokens[batch.ahead(1 + step)], states)
        taught = batch.is_taught_ahead(1 + step)
        agreed[taught, step] = draft(states[taught]) == batch.tokens[batch.ahead(2 + step)][taught]
    return agreed
