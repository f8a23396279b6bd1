"""The types that a model can be quantised to, and what each makes of a model's tensors.

A type such as q4_k_m is a mix: most matrices get its base, and those that suffer most get more bits. The
mixes are those that llama.cpp has under the same names, so that a name means the same size everywhere:

  type              most       attn_v              attn_output  ffn_down                attn_qkv
  q2_k              q2_k       q3_k (1)            q3_k         q3_k
  q3_k_s            q3_k
  q3_k_m, q3_k      q3_k       q4_k, first 2 q5_k  q4_k         q4_k, first 1/16 q5_k   q4_k
  q3_k_l            q3_k       q5_k                q5_k         q5_k                    q4_k
  q4_k_s            q4_k       first 4 q5_k                     first 1/8 q5_k
  q4_k_m, q4_k      q4_k       q6_k (2)                         q6_k (2)                q5_k
  q5_k_s            q5_k
  q5_k_m, q5_k      q5_k       q6_k (2)                         q6_k (2)                q6_k
  iq4_nl            iq4_nl     q5_k (3)                         first 1/8 q5_k (4)
  q6_k, q8_0, q5_1, q5_0, q4_1, q4_0, f32, f16, bf16: all matrices alike (5)

  (1) q4_k if four or more query heads share a value head
  (2) of the first and the last eighth of the layers, and of every third between
  (3) if four or more query heads share a value head
  (4) without an importance matrix
  (5) with one, ffn_down of the first eighth is q4_1 for q4_0, and q5_1 for q5_0

The output matrix, which may be the embedding, is q6_k, of q8_0 q8_0. Of eight experts, attn_v and attn_k are
q8_0, and attn_output is q5_k where it would have fewer bits than five. A matrix whose rows do not divide by
256 has iq4_nl for q2_k and q3_k, q5_0 for q4_k, q5_1 for q5_k, q8_0 for q6_k; by 32 neither, f16. What is no
matrix, norms and biases, is f32.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trivet import dtypes
from trivet.dtypes import (
    DType,
    bf16,
    f16,
    f32,
    iq4_nl,
    q2_k,
    q3_k,
    q4_0,
    q4_1,
    q4_k,
    q5_0,
    q5_1,
    q5_k,
    q6_k,
    q8_0,
)
from trivet.models.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Place:
    """Where a matrix stands: its layer, and the facts of the model that choices depend on."""

    layer: int
    layers: int
    shared: int  # query heads to a value head
    experts: int
    weighted: bool  # whether there is an importance matrix


Where = Callable[[Place], bool]


def _everywhere(_: Place) -> bool:
    return True


def _first(count: int) -> Where:
    return lambda at: at.layer < count


def _first_part(part: int) -> Where:
    return lambda at: at.layer < at.layers // part


def _spread(at: Place) -> bool:
    eighth = at.layers // 8
    return at.layer < eighth or at.layer >= 7 * at.layers // 8 or (at.layer - eighth) % 3 == 2


def _shared(at: Place) -> bool:
    return at.shared >= 4


def _guarded(at: Place) -> bool:
    return at.weighted and _first_part(8)(at)


def _unguarded(at: Place) -> bool:
    return not at.weighted and _first_part(8)(at)


def _eight_experts(at: Place) -> bool:
    return at.experts == 8


@dataclass(frozen=True, slots=True)
class Mix:
    """`number` is general.file_type of GGUF. A matrix has the dtype of the first of `parts`, (part of the
    name, where, dtype), that fits it, or else the base."""

    number: int
    base: DType
    parts: tuple[tuple[str, Where, DType], ...] = ()


_MORE_BITS = (("attn_v", _spread, q6_k), ("ffn_down", _spread, q6_k))
_FEW_OF_EIGHT = (("attn_output", _eight_experts, q5_k),)

MIXES: dict[str, Mix] = {
    "f32": Mix(0, f32),
    "f16": Mix(1, f16),
    "bf16": Mix(32, bf16),
    "q8_0": Mix(7, q8_0),
    "q6_k": Mix(18, q6_k),
    "q5_k_m": Mix(17, q5_k, (*_MORE_BITS, ("attn_qkv", _everywhere, q6_k))),
    "q5_k_s": Mix(16, q5_k),
    "q5_1": Mix(9, q5_1),
    "q5_0": Mix(8, q5_0, (("ffn_down", _guarded, q5_1),)),
    "q4_k_m": Mix(15, q4_k, (*_FEW_OF_EIGHT, *_MORE_BITS, ("attn_qkv", _everywhere, q5_k))),
    "q4_k_s": Mix(
        14, q4_k, (*_FEW_OF_EIGHT, ("attn_v", _first(4), q5_k), ("ffn_down", _first_part(8), q5_k))
    ),
    "iq4_nl": Mix(25, iq4_nl, (*_FEW_OF_EIGHT, ("attn_v", _shared, q5_k), ("ffn_down", _unguarded, q5_k))),
    "q4_1": Mix(3, q4_1),
    "q4_0": Mix(2, q4_0, (("ffn_down", _guarded, q4_1),)),
    "q3_k_l": Mix(
        13,
        q3_k,
        (
            ("attn_v", _everywhere, q5_k),
            ("attn_output", _everywhere, q5_k),
            ("ffn_down", _everywhere, q5_k),
            ("attn_qkv", _everywhere, q4_k),
        ),
    ),
    "q3_k_m": Mix(
        12,
        q3_k,
        (
            *_FEW_OF_EIGHT,
            ("attn_v", _first(2), q5_k),
            ("attn_v", _everywhere, q4_k),
            ("attn_output", _everywhere, q4_k),
            ("ffn_down", _first_part(16), q5_k),
            ("ffn_down", _everywhere, q4_k),
            ("attn_qkv", _everywhere, q4_k),
        ),
    ),
    "q3_k_s": Mix(11, q3_k, _FEW_OF_EIGHT),
    "q2_k": Mix(
        10,
        q2_k,
        (
            *_FEW_OF_EIGHT,
            ("attn_v", _shared, q4_k),
            ("attn_v", _everywhere, q3_k),
            ("attn_output", _everywhere, q3_k),
            ("ffn_down", _everywhere, q3_k),
        ),
    ),
}
#: what people call a mix in short
ALIASES = {"q5_k": "q5_k_m", "q4_k": "q4_k_m", "q3_k": "q3_k_m"}


def named(type: str) -> str:
    """A type's name as MIXES has it, from any case and from an alias.

    >>> named("Q4_K_M"), named("q4_k"), named("keep")
    ('q4_k_m', 'q4_k_m', 'keep')
    """
    return ALIASES.get(type.lower(), type.lower())


_OF_EIGHT_EXPERTS = (("attn_v", _eight_experts, q8_0), ("attn_k", _eight_experts, q8_0))
#: for rows that do not divide by 256
_NARROW = {q2_k: iq4_nl, q3_k: iq4_nl, q4_k: q5_0, q5_k: q5_1, q6_k: q8_0}
#: matrices that stay whole: parts of their names
_WHOLE = ("_norm", "ffn_gate_inp", "position_embd", "token_types", "ssm_conv1d", "rope_freqs")


def kinds(checkpoint: Checkpoint, type: str, weighted: bool = False) -> dict[str, DType]:
    """The dtype of each tensor of a model, under a type of MIXES. `weighted`: with an importance matrix."""
    wanted = _wanted(checkpoint, type, weighted)
    return {name: _fitting(dtype, checkpoint.tensors[name].shape) for name, dtype in wanted.items()}


def notes(checkpoint: Checkpoint, type: str, weighted: bool = False) -> list[str]:
    """Which matrices are not what the type makes of others, as their rows are no whole blocks.

    A smaller block that does not divide a row is told, and not the larger one."""
    unfit: dict[int, list[str]] = {}
    for name, dtype in _wanted(checkpoint, type, weighted).items():
        shape = checkpoint.tensors[name].shape
        given = _fitting(dtype, shape)
        if given is not dtype:
            unfit.setdefault(32 if shape[-1] % 32 else dtype.block, []).append(given.name)
    said = []
    for block, found in sorted(unfit.items()):
        have, are = ("matrices have", "they are") if len(found) > 1 else ("matrix has", "it is")
        types = ", ".join(sorted(set(found)))
        said.append(f"{len(found)} {have} rows that blocks of {block} do not divide: {are} {types}")
    return said


def _wanted(checkpoint: Checkpoint, type: str, weighted: bool) -> dict[str, DType]:
    """The same where every row is whole blocks."""
    mix, facts = MIXES[type], _facts(checkpoint)
    tied = "output.weight" not in checkpoint.tensors
    head = "token_embd.weight" if tied else "output.weight"
    found = {}
    for name, entry in checkpoint.tensors.items():
        if not (entry.dtype.is_float or entry.dtype.is_packed):
            found[name] = entry.dtype
            continue
        if not _is_matrix(name, entry.shape):
            found[name] = f32
            continue
        layer = re.match(r"blk\.(\d+)\.", name)
        place = Place(int(layer[1]) if layer else 0, weighted=weighted, **facts)
        found[name] = _head(mix.base) if name == head else _part(mix, name, place)
    return found


def _is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) >= 2 and name.endswith(".weight") and not any(part in name for part in _WHOLE)


def _head(base: DType) -> DType:
    return base if base in (*dtypes.FLOATS, q8_0) else q6_k


def _part(mix: Mix, name: str, place: Place) -> DType:
    parts = (*_OF_EIGHT_EXPERTS, *mix.parts) if mix.base.is_packed else ()
    return next(
        (dtype for part, where, dtype in parts if f".{part}." in name and where(place)),
        mix.base,
    )


def _fitting(dtype: DType, shape: tuple[int, ...]) -> DType:
    if not dtype.is_packed:
        return dtype
    row = shape[-1]
    if row % dtype.block:
        dtype = _NARROW.get(dtype, f16)
    return f16 if row % dtype.block else dtype


def _facts(checkpoint: Checkpoint) -> dict[str, int]:
    def at(key: str, default: int) -> int:
        value: Any = checkpoint.metadata.get(f"{checkpoint.architecture}.{key}", default)
        return value if isinstance(value, int) and value > 0 else default

    heads = at("attention.head_count", 1)
    return {
        "layers": at("block_count", 1),
        "shared": heads // at("attention.head_count_kv", heads),
        "experts": at("expert_count", 0),
    }
