"""A mixture of experts in place of a block's MLP (arXiv:2401.04088): a router gives each token to a few of
many gated MLPs, whose results are summed with its weights.

A file holds the experts' matrices stacked, ffn_{gate,up,down}_exps.weight [experts, outputs, inputs]; a
block that has ffn_{gate,up,down}.weight has a plain MLP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trivet import dtypes, ops
from trivet.errors import ModelError
from trivet.models.checkpoint import Checkpoint, positive
from trivet.models.decoder import GatedMLP, Linear
from trivet.ops.linear import rows


@dataclass(frozen=True, slots=True)
class Mixture:
    """Sizes: how many experts, to how many a token goes, their hidden size, and whether the weights of these
    sum to 1."""

    count: int
    used: int
    hidden: int
    normed: bool

    @staticmethod
    def from_metadata(checkpoint: Checkpoint) -> Mixture | None:
        """As the file has it; None if it has no experts. Raises ModelError."""
        metadata, name = checkpoint.metadata, checkpoint.architecture
        if metadata.get(f"{name}.expert_count", 0) == 0:
            return None
        count, used = (positive(metadata, f"{name}.{k}") for k in ("expert_count", "expert_used_count"))
        if used > count:
            raise ModelError(f"[load] {name}.expert_used_count is {used}; there are {count} experts")
        hidden = positive(metadata, f"{name}.feed_forward_length")
        hidden = positive(metadata, f"{name}.expert_feed_forward_length", hidden)
        normed = metadata.get(f"{name}.expert_weights_norm", True)
        if not isinstance(normed, bool):
            raise ModelError(f"[load] {name}.expert_weights_norm is {normed!r:.50}; wanted true or false")
        return Mixture(count, used, hidden, normed)


class Experts:
    """The experts of a block, and their router."""

    def __init__(self, checkpoint: Checkpoint, block: str, width: int, mixture: Mixture) -> None:
        def stack(name: str, inputs: int, outputs: int) -> Any:
            return checkpoint.weight(f"{block}.{name}.weight", (mixture.count, outputs, inputs))

        self.mixture = mixture
        self.router = Linear(checkpoint, f"{block}.ffn_gate_inp", width, mixture.count)
        self.gate = stack("ffn_gate_exps", width, mixture.hidden)
        self.up = stack("ffn_up_exps", width, mixture.hidden)
        self.down = stack("ffn_down_exps", mixture.hidden, width)

    def __call__(self, x: Any) -> Any:
        flat = rows(x)
        weights, ids = self._route(flat)
        gate, up = ops.expert_linear(flat, self.gate, ids), ops.expert_linear(flat, self.up, ids)
        each = ops.expert_linear(ops.swiglu(gate, up), self.down, ids)
        weights = ops.cast(ops.reshape(weights, (*weights.shape, 1)), x.dtype)
        return ops.reshape(ops.sum(ops.mul(each, weights), 1), x.shape)

    def _route(self, x: Any) -> tuple[Any, Any]:
        """Weights f32 [T, used], and which experts i32 [T, used] they are of."""
        chances = ops.softmax(ops.cast(self.router(x), dtypes.f32), axis=-1)
        weights, ids = ops.top_k(chances, self.mixture.used)
        if self.mixture.normed:
            weights = ops.div(weights, ops.sum(weights, -1, keepdims=True))
        return weights, ids


def mlp(checkpoint: Checkpoint, block: str, width: int, hidden: int, mixture: Mixture | None) -> Any:
    """What a block has: experts, or a gated MLP of `hidden` elements."""
    if mixture is None or is_dense(checkpoint, block):
        return GatedMLP(checkpoint, block, width, hidden)
    return Experts(checkpoint, block, width, mixture)


def is_dense(checkpoint: Checkpoint, block: str) -> bool:
    """Whether a block has a plain MLP."""
    return any(f"{block}.ffn_{name}.weight" in checkpoint.tensors for name in ("gate", "up", "down"))


# --- Hugging Face folders ------------------------------------------------------------------------


def experts_metadata(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF's keys of the experts from config.json's, whose count has had two names."""
    count = "num_experts" if config.get("num_experts") is not None else "num_local_experts"
    return {
        f"{name}.expert_count": positive(config, count),
        f"{name}.expert_used_count": positive(config, "num_experts_per_tok"),
    }
