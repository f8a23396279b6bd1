"""DLPack both ways: NumPy and PyTorch, bfloat16 too, over the same memory on the way out."""

import numpy as np
import pytest

import trivet as tv
from trivet.errors import DTypeError

torch = pytest.importorskip("torch")
KINDS = {
    "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64,
    "i8": torch.int8, "u8": torch.uint8, "i32": torch.int32, "i64": torch.int64, "bool": torch.bool,
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_there_and_back(device, name):
    theirs = torch.tensor([[0, 1, 3], [1, 0, 2]]).to(KINDS[name])
    ours = tv.from_dlpack(theirs, device)
    assert (ours.dtype.name, ours.shape, ours.device) == (name, (2, 3), device)
    back = torch.from_dlpack(ours)
    assert back.dtype == theirs.dtype
    assert torch.equal(back, theirs)
    assert torch.from_dlpack(ours).data_ptr() == back.data_ptr()


def test_strided_and_empty_sources():
    theirs = torch.arange(12).reshape(3, 4)[:, ::2].t()
    assert tv.asarray(theirs, device="reference").tolist() == theirs.tolist()
    assert tv.from_dlpack(torch.zeros((0, 3)), "reference").shape == (0, 3)


def test_what_came_in_is_a_copy():
    theirs = torch.ones(4, dtype=torch.bfloat16)
    ours = tv.from_dlpack(theirs, "reference")
    theirs[:] = 2
    assert ours.tolist() == [1.0] * 4


def test_memory_lives_as_long_as_its_user():
    made = torch.from_dlpack(tv.asarray([1.0, 2.0], "bf16", "reference") * 2)
    others = [tv.full(2, float(i), device="reference").numpy() for i in range(50)]
    assert made.tolist() == [2.0, 4.0]
    assert len(others) == 50


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int16, torch.float8_e4m3fn])
def test_dtypes_without_a_counterpart_are_refused(dtype):
    with pytest.raises(DTypeError):
        tv.from_dlpack(torch.zeros(2).to(dtype), "reference")


def test_constants_and_views_can_be_given_out(device):
    for x in (
        tv.full((3,), 2.0, device=device),
        tv.asarray(5.0, device=device),
        tv.arange(6, device=device)[1:3],
    ):
        assert torch.from_dlpack(x).tolist() == x.tolist()


def test_numpy_reads_tensors():
    x = tv.asarray([1.0, 2.0], device="reference")
    assert np.from_dlpack(x).tolist() == [1.0, 2.0]
