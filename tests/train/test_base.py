"""What a run stands on: NF4 of a model's matrices, one tensor at a time."""

from pathlib import Path

import numpy as np
import pytest

import tiny_model
from trivet import dtypes
from trivet.blocks import quantize
from trivet.errors import NonFiniteError
from trivet.formats.gguf import TensorSource
from trivet.models.checkpoint import Checkpoint, Entry, open_checkpoint
from trivet.train import base

MATRIX, WIDE = "blk.0.attn_q.weight", "blk.0.ffn_down.weight"


def kinds(checkpoint):
    return {name: entry.dtype for name, entry in checkpoint.tensors.items()}


@pytest.mark.parametrize("double", [True, False])
def test_the_matrices_of_blocks_are_nf4_and_the_rest_is_as_decoded(tmp_path, double):
    whole = open_checkpoint(tiny_model.write(tmp_path / "m.gguf"))
    made, rest = base.nf4(whole, dtypes.bf16, 32, double), kinds(base.decoded(whole, dtypes.bf16))
    wanted = (dtypes.NF4D if double else dtypes.NF4)[0]
    packed = {name for name, kind in kinds(made).items() if kind is wanted}
    assert packed == {n for n, e in whole.tensors.items() if n.startswith("blk.") and len(e.shape) == 2}
    assert all(kind is rest[name] for name, kind in kinds(made).items() if name not in packed)
    assert not base.nf4_notes(made, 32)
    entry = made.tensors[MATRIX]
    assert np.array_equal(entry.load(), quantize(whole.tensors[MATRIX].values(), wanted).reshape(-1))
    assert entry.load().size == entry.nbytes


def test_a_packed_file_is_packed_anew_but_for_what_is_no_matrix_of_a_block(tmp_path):
    weights = {
        name: TensorSource(dtypes.q8_0, array.shape, quantize(array, dtypes.q8_0))
        for name, array in tiny_model.tensors().items()
        if array.ndim == 2
    }
    whole = open_checkpoint(tiny_model.write(tmp_path / "m.gguf", weights=weights))
    made = base.nf4(whole, dtypes.f32, 32)
    assert made.tensors[MATRIX].dtype is dtypes.NF4D[0]
    assert made.tensors["token_embd.weight"] is whole.tensors["token_embd.weight"]
    assert made.tensors["token_embd.weight"].dtype is dtypes.q8_0


def test_rows_that_a_block_does_not_divide_have_a_shorter_one(tmp_path):
    rng = np.random.default_rng(0)
    shapes = {MATRIX: (32, 192), WIDE: (32, 40)}
    weights = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    whole = open_checkpoint(tiny_model.write(tmp_path / "m.gguf", weights=weights))
    made = base.nf4(whole, dtypes.f32, 4096)
    assert made.tensors[MATRIX].dtype is dtypes.nf4d_64
    assert made.tensors[WIDE].dtype is dtypes.f32
    assert base.nf4_notes(made, 4096) == [
        "12 matrices have rows that 4096 does not divide: they are nf4d_64",
        "1 matrices have rows that 4096 does not divide: they are f32",
        "1 matrices have rows that 4096 does not divide: they are nf4d_32",
    ]


def test_nothing_is_made_before_it_is_asked_for_and_a_number_that_is_none_is_named(tmp_path):
    wrong = tiny_model.tensors()[MATRIX].copy()
    wrong[1, 2] = np.nan
    whole = open_checkpoint(tiny_model.write(tmp_path / "m.gguf", weights={MATRIX: wrong}))
    made = base.nf4(whole, dtypes.f32, 32)
    assert made.load("blk.0.attn_k.weight").dtype == np.uint8
    with pytest.raises(NonFiniteError, match=r"blk\.0\.attn_q\.weight has numbers that are not finite"):
        made.load(MATRIX)


def test_experts_that_stay_floats_are_told():
    shape = (3, 64, 64)
    tensors = {"blk.0.ffn_up_exps.weight": Entry(dtypes.f32, shape, lambda: np.ones(shape, np.float32))}
    made = base.nf4(Checkpoint(Path("m"), {}, tensors), dtypes.bf16)
    assert made.tensors["blk.0.ffn_up_exps.weight"].dtype is dtypes.bf16
    assert base.nf4_notes(made, 64) == [
        "1 stacks of experts are bf16: experts are multiplied with in floats or a file's own blocks"
    ]
