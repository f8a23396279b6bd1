"""A model's rotation: from GGUF metadata, and the same as the keys of a Hugging Face config.json, both ways.

What files say, by the type of scaling:

    linear    rope.scaling.factor, or the old rope.scale_linear
    yarn      factor, original_context_length, and if they differ from the paper's yarn_beta_fast and _slow;
              attn_factor multiplies the paper's 0.1 ln(factor) + 1, yarn_attn_factor replaces it
    llama3    a tensor rope_freqs.weight of divisors; config.json has the numbers that they come from
    longrope  two tensors of divisors, rope_factors_short.weight and _long.weight, one for contexts up to
              original_context_length, one for longer ones; attn_factor
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import ops
from trivet.errors import InputError, ModelError, UnsupportedError
from trivet.models.checkpoint import Checkpoint, number, positive

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """Inverse frequencies, [dim / 2], and the factor on cosine and sine."""

    inv_freq: F64
    scale: float

    @staticmethod
    def from_metadata(checkpoint: Checkpoint, head_dim: int, theta: float = 10000.0) -> Rope:
        """As the file has it; `theta` where it does not say. Raises ModelError."""
        name, metadata = f"{checkpoint.architecture}.rope", checkpoint.metadata
        dim = positive(metadata, f"{name}.dimension_count", head_dim)
        if dim % 2 or dim > head_dim:
            raise ModelError(f"[load] {name}.dimension_count {dim} is odd, or over the head's {head_dim}")
        base = number(metadata, f"{name}.freq_base", theta, least=1e-6)
        inv_freq, scale = _frequencies(name, dim, base, _scaling(metadata, name))
        factors = divisors(checkpoint, "rope_freqs.weight", dim // 2)
        return Rope(inv_freq if factors is None else inv_freq / factors, scale)

    def table(self, positions: Any) -> tuple[Any, Any]:
        """Cosines and sines at positions [..., T]: f32 [..., T, dim / 2] each."""
        table: tuple[Any, Any] = ops.rope_table(positions, self.inv_freq, scale=self.scale)
        return table


def _frequencies(name: str, dim: int, base: float, scaling: Mapping[str, Any] | None) -> tuple[F64, float]:
    try:
        found: tuple[F64, float] = ops.rope_frequencies(dim, base, scaling)
    except InputError as error:
        raise ModelError(f"[load] {name}.freq_base, {name}.scaling: {error}") from None
    return found


def divisors(checkpoint: Checkpoint, name: str, count: int) -> F64 | None:
    """A tensor that frequencies are divided by, if the file has it."""
    if checkpoint.find(name, (count,)) is None:
        return None
    factors = checkpoint.tensors[name].values().astype(np.float64)
    if not ((factors > 1e-9) & (factors < 1e9)).all():
        raise ModelError(f"[load] tensor {name!r} holds numbers beyond 1e-9 to 1e9")
    return factors


def _scaling(metadata: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """GGUF's keys as the scaling argument of ops.rope_frequencies."""
    kind = metadata.get(f"{name}.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise ModelError(f"[load] {name}.scaling.type is {kind!r}; known: none, linear, yarn, longrope")
    if kind in ("none", "longrope"):
        return None
    old = number(metadata, f"{name}.scale_linear", 0.0, least=0.0)
    factor = number(metadata, f"{name}.scaling.factor", old, least=0.0) or 1.0
    if not 1e-6 <= factor <= 1e9:
        raise ModelError(f"[load] {name}.scaling.factor is {factor}; wanted 1e-6 to 1e9, or 0 for none")
    if kind == "linear":
        return None if factor == 1.0 else {"type": kind, "factor": factor}
    scaling = {"type": kind, "factor": factor}
    scaling["original_context"] = positive(metadata, f"{name}.scaling.original_context_length")
    for key in ("beta_fast", "beta_slow"):
        if f"{name}.scaling.yarn_{key}" in metadata:
            scaling[key] = number(metadata, f"{name}.scaling.yarn_{key}", least=1e-6)
    given = number(metadata, f"{name}.scaling.yarn_attn_factor", yarn_attention(factor), least=1e-6)
    scaling["attention_factor"] = given * number(metadata, f"{name}.scaling.attn_factor", 1.0, least=1e-6)
    return scaling


def yarn_attention(factor: float) -> float:
    """What YaRN multiplies cosine and sine by (arXiv:2309.00071, equation 22)."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


# --- config.json ---------------------------------------------------------------------------------

KNOWN = ("default", "dynamic", "linear", "yarn", "llama3")


def hf_rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rope parameters: one mapping in new files, `rope_theta` and `rope_scaling` in older ones."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(found, Mapping):
        raise ModelError(f"[load] config.json: rope_parameters is {found!r:.50}; wanted an object")
    flat = {k: config[k] for k in ("rope_theta", "partial_rotary_factor") if config.get(k) is not None}
    return {**flat, **found, "rope_type": found.get("rope_type", found.get("type", "default"))}


def hf_rope_metadata(
    name: str,
    config: Mapping[str, Any],
    head_dim: int,
    theta: float = 10000.0,
    partial: float | None = None,
    known: tuple[str, ...] = KNOWN,
) -> dict[str, Any]:
    """GGUF's keys from config.json's. `theta` and `partial` are what an architecture has where config.json
    does not say; partial None: it rotates whole heads. "dynamic" scales beyond max_position_embeddings only,
    where trivet does not go; llama3's numbers become a tensor, see `hf_llama3`."""
    rope = hf_rope(config)
    kind = rope["rope_type"]
    if kind not in known:
        raise ModelError(f"[load] config.json: rope_type is {kind!r}; known: {', '.join(known)}")
    part = number(rope, "partial_rotary_factor", partial or 1.0, least=0.0)
    if part > 1.0 or (partial is None and part != 1.0):
        raise ModelError(
            f"[load] config.json: partial_rotary_factor is {part}; {name} rotates"
            + (" whole heads" if partial is None else " a part of each head")
        )
    keys: dict[str, Any] = {
        "freq_base": number(rope, "rope_theta", theta, least=1e-6),
        "dimension_count": positive({"partial_rotary_factor": int(head_dim * part)}, "partial_rotary_factor"),
    }
    if kind in ("linear", "yarn"):
        keys |= {"scaling.type": kind, "scaling.factor": number(rope, "factor", least=1e-6)}
    if kind == "yarn":
        keys |= _hf_yarn(rope)
    return {f"{name}.rope.{key}": value for key, value in keys.items()}


def _hf_yarn(rope: Mapping[str, Any]) -> dict[str, Any]:
    if rope.get("truncate", True) is not True:
        raise ModelError(f"[load] config.json: truncate is {rope['truncate']!r}; wanted true")
    keys: dict[str, Any] = {
        "scaling.original_context_length": positive(rope, "original_max_position_embeddings")
    }
    for key in ("beta_fast", "beta_slow"):
        if rope.get(key) is not None:
            keys[f"scaling.yarn_{key}"] = number(rope, key, least=1e-6)
    scales = ("attention_factor", "mscale", "mscale_all_dim")
    given = {key: number(rope, key, least=1e-6) for key in scales if rope.get(key) is not None}
    given |= {"factor": number(rope, "factor", least=1e-6), "original_context": 1.0}
    _, scale = ops.rope_frequencies(2, 10000.0, given | {"type": "yarn"})
    if scale != yarn_attention(given["factor"]):
        keys["scaling.attn_factor"] = scale / yarn_attention(given["factor"])
    return keys


def hf_llama3(config: Mapping[str, Any], head_dim: int, theta: float = 10000.0) -> dict[str, F32]:
    """The tensor of divisors that stands for the scaling of Llama 3, if config.json asks for it."""
    rope = hf_rope(config)
    if rope["rope_type"] != "llama3":
        return {}
    scaling = {k: number(rope, k, least=1e-6) for k in ("factor", "low_freq_factor", "high_freq_factor")}
    if scaling["low_freq_factor"] >= scaling["high_freq_factor"]:
        raise ModelError("[load] config.json: low_freq_factor is not below high_freq_factor")
    base = number(rope, "rope_theta", theta, least=1e-6)
    context = {"original_context": positive(rope, "original_max_position_embeddings"), "type": "llama3"}
    plain, _ = ops.rope_frequencies(head_dim, base)
    scaled, _ = ops.rope_frequencies(head_dim, base, scaling | context)
    return {"rope_freqs.weight": (plain / scaled).astype(np.float32)}


def hf_rope_config(
    checkpoint: Checkpoint, head_dim: int, theta: float = 10000.0, partial: bool = False
) -> dict[str, Any]:
    """config.json's keys from GGUF's: the inverse of the two above. Raises UnsupportedError for divisors that
    are not Llama 3's, and for a part of each head where Hugging Face's model rotates it whole."""
    name, metadata = f"{checkpoint.architecture}.rope", checkpoint.metadata
    base = number(metadata, f"{name}.freq_base", theta)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": base}
    dim = positive(metadata, f"{name}.dimension_count", head_dim)
    if dim != head_dim and not partial:
        raise UnsupportedError(
            f"[config.json] Hugging Face's {checkpoint.architecture} rotates whole heads; this model rotates"
            f" {dim} elements of {head_dim}"
        )
    if partial:
        part = dim / head_dim
        rope["partial_rotary_factor"] = part if int(head_dim * part) == dim else math.nextafter(part, 1)
    scaling = _scaling(metadata, name) or {}
    names = {"type": "rope_type", "original_context": "original_max_position_embeddings"}
    rope |= {names.get(key, key): value for key, value in scaling.items()}
    if scaling.get("attention_factor") == yarn_attention(scaling.get("factor", 1.0)):
        del rope["attention_factor"]
    factors = divisors(checkpoint, "rope_freqs.weight", dim // 2)
    if factors is not None:
        rope |= _llama3(factors, dim, base)
    return {k: v for k, v in rope.items() if k in ("rope_theta", "partial_rotary_factor")} | {
        "rope_parameters": rope
    }


def _llama3(factors: F64, dim: int, base: float) -> dict[str, Any]:
    """The numbers that divisors come from. Between the wavelengths where they are 1 and `factor`, 1 / divisor
    is a line over the frequency. Contexts and both factors may be scaled alike: low_freq_factor is 1."""
    factor, plain = float(factors.max()), ops.rope_frequencies(dim, base)[0]
    inside = (factors > 1 + 1e-4) & (factors < factor * (1 - 1e-4))
    rope: dict[str, Any] = {"rope_type": "llama3", "factor": round(factor, 4), "low_freq_factor": 1.0}
    if inside.sum() >= 2:
        smooth = (1 / factors[inside] - 1 / factor) / (1 - 1 / factor)
        slope, offset = np.polyfit(plain[inside], smooth, 1)
        high = 1 - 1 / min(float(offset), -1e-6)  # the line is below 0 where the frequency is 0
        context = float(slope) * 2 * math.pi * (high - 1)
        if 1 <= context < 2**31:
            rope |= {"high_freq_factor": round(high, 4), "original_max_position_embeddings": round(context)}
            made = hf_llama3({"rope_parameters": rope | {"rope_theta": base}}, dim)["rope_freqs.weight"]
            if np.allclose(made, factors, rtol=1e-3):
                return rope
    raise UnsupportedError("[config.json] there are no words for the tensor rope_freqs.weight")
