"""Symbolic sizes and messages of the rows that models are made of."""

import numpy as np
import pytest

from trivet import dtypes, graph, ops
from trivet.backends.numpy import BACKEND
from trivet.errors import DTypeError, InputError, ShapeError
from trivet.graph import Dim, Graph
from trivet.ops.table import TABLE, NoGradient, Sample, define

B, T, S = Dim("B"), Dim("T"), Dim("S")


def leaf(*shape, dtype=dtypes.f32):
    return graph.input("x", shape, dtype)


def test_symbolic_sizes_flow_through():
    x = leaf(B, T, 8)
    assert ops.rms_norm(x, leaf(8)).shape == (B, T, 8)
    assert ops.layer_norm(x, leaf(8), leaf(8)).shape == (B, T, 8)
    assert ops.linear(x, graph.weight("w", (64, 8), dtypes.f16)).shape == (B, T, 64)
    assert ops.swiglu(x, x).shape == (B, T, 8)
    assert ops.softmax(x).shape == (B, T, 8)
    assert ops.causal_softmax(leaf(B, T, S)).shape == (B, T, S)
    assert ops.embedding(leaf(T, dtype=dtypes.i32), leaf(50, 8)).shape == (T, 8)
    assert ops.matmul(leaf(B, T, 8), leaf(B, 8, S)).shape == (B, T, S)
    assert ops.attention(leaf(B, T, 4, 8), leaf(B, S, 2, 8), leaf(B, S, 2, 6)).shape == (B, T, 4, 6)
    assert ops.cross_entropy(leaf(B * 2, 50), leaf(B * 2, dtype=dtypes.i32)).shape == (2 * B,)


FLAGS = {"lengths": False, "starts": False, "alibi": False}
ATTENTION = {"scale": 1.0, "causal": True, "window": 3, "softcap": 2.0, **FLAGS}
CHOSEN = leaf(T, 2, dtype=dtypes.i32)
#: inputs with a leading size that is symbolic, and attributes, of every row that has a fallback
SYMBOLIC = {
    "mean": ([leaf(T, 3)], {"axes": (0,), "keepdims": True}),
    "softmax": ([leaf(T, 3)], {"axis": 1}),
    "log_softmax": ([leaf(T, 3)], {"axis": 1}),
    "causal_softmax": ([leaf(T, S)], {}),
    "embedding": ([leaf(T, dtype=dtypes.i32), leaf(5, 3)], {}),
    "rms_norm": ([leaf(T, 3), leaf(3)], {"eps": 1e-5}),
    "rms_norm_backward": ([leaf(T, 3), leaf(T, 3), leaf(3)], {"eps": 1e-5}),
    "layer_norm": ([leaf(T, 3), leaf(3), leaf(3)], {"eps": 1e-5}),
    "layer_norm_backward": ([leaf(T, 3), leaf(T, 3), leaf(3)], {"eps": 1e-5}),
    "rope_table": ([leaf(T, dtype=dtypes.i32), leaf(4, dtype=dtypes.f64)], {"scale": 1.0}),
    "rope": ([leaf(T, 2, 8), leaf(T, 4), leaf(T, 4)], {"interleaved": True}),
    "addmm": (
        [leaf(T, 5), leaf(T, 3), leaf(3, 5)],
        {"alpha": 2.0, "beta": 0.5, "transpose_a": False, "transpose_b": False},
    ),
    "linear": ([leaf(T, 3), leaf(5, 3), leaf(5)], {}),
    "linear_input_grad": ([leaf(T, 5), leaf(5, 3)], {}),
    "top_k": ([leaf(T, 7)], {"k": 3}),
    "expert_linear": ([leaf(T, 3), leaf(4, 5, 3), CHOSEN], {}),
    "expert_linear_input_grad": ([leaf(T, 2, 5), leaf(4, 5, 3), CHOSEN], {}),
    "expert_linear_weight_grad": ([leaf(T, 2, 5), leaf(T, 3), CHOSEN], {"experts": 4}),
    "swiglu": ([leaf(T, 3), leaf(T, 3)], {}),
    "geglu": ([leaf(T, 3), leaf(T, 3)], {"approximate": True}),
    "swiglu_backward": ([leaf(T, 3), leaf(T, 3), leaf(T, 3)], {}),
    "gelu_backward": ([leaf(T, 3), leaf(T, 3)], {"approximate": True}),
    "geglu_backward": ([leaf(T, 3), leaf(T, 3), leaf(T, 3)], {"approximate": True}),
    "grad_norm": ([leaf(T, 3), leaf(5)], {}),
    "accumulate": ([leaf(T, 3), leaf(T, 3), leaf()], {}),
    "adamw": (
        [leaf(T, 3), leaf(T, 3), leaf(T, 3), leaf(T, 3), leaf(3), leaf()],
        {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 0.0, "first": 0},
    ),
    "cross_entropy": ([leaf(T, 5), leaf(T, dtype=dtypes.i32)], {"ignore_index": -1}),
    "cross_entropy_backward": ([leaf(T), leaf(T, 5), leaf(T, dtype=dtypes.i32)], {"ignore_index": -1}),
    "linear_cross_entropy": ([leaf(T, 3), leaf(5, 3), leaf(T, dtype=dtypes.i32)], {"ignore_index": -1}),
    "linear_cross_entropy_slopes": (
        [leaf(T, 3), leaf(5, 3), leaf(T, dtype=dtypes.i32)],
        {"ignore_index": -1},
    ),
    "linear_cross_entropy_backward": (
        [leaf(T), leaf(T, 3), leaf(5, 3), leaf(T, dtype=dtypes.i32), leaf(T)],
        {"ignore_index": -1, "weight_grad": True},
    ),
    "attention": ([leaf(B, T, 4, 8), leaf(B, S, 2, 8), leaf(B, S, 2, 6)], ATTENTION),
    "attention_backward": (
        [leaf(B, T, 4, 6), leaf(B, T, 4, 8), leaf(B, S, 2, 8), leaf(B, S, 2, 6), leaf(B, T, 4, 6),
         leaf(B, T, 4)],
        ATTENTION,
    ),
    "paged_attention": (
        [leaf(T, 4, 8), leaf(Dim("N"), 2, 8, 16), leaf(Dim("N"), 2, 16, 6),
         *[leaf(T, dtype=dtypes.i32)] * 2, leaf(B, Dim("P"), dtype=dtypes.i32)],
        {"scale": 1.0, "window": 3, "softcap": 2.0, "alibi": False},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(n for n, row in TABLE.items() if row.fallback))
def test_fallbacks_keep_symbolic_sizes(name):
    """A fallback has the specs of its row where a leading size is symbolic."""
    inputs, attrs = SYMBOLIC[name]
    want = TABLE[name].infer(*(i.spec for i in inputs), **attrs)
    made = TABLE[name].fallback(*inputs, **attrs)
    assert isinstance(want, tuple) == isinstance(made, tuple)
    specs = tuple(m.spec for m in made) if isinstance(made, tuple) else made.spec
    assert specs == want


def test_messages():
    with pytest.raises(ShapeError, match=r"\[linear\] x has shape \(2, 7\), wanted \(2, 8\)"):
        ops.linear(leaf(2, 7), leaf(5, 8))
    with pytest.raises(ShapeError, match=r"\[attention\] 5 query heads do not divide among 2 key heads"):
        ops.attention(leaf(1, 3, 5, 8), leaf(1, 3, 2, 8), leaf(1, 3, 2, 8))
    kv = leaf(1, 3, 2, 8)
    with pytest.raises(ShapeError, match=r"\[attention\] key_lengths has shape \(2,\), wanted \(1,\)"):
        ops.attention(leaf(1, 3, 4, 8), kv, kv, key_lengths=np.zeros(2, np.int32))
    with pytest.raises(ShapeError, match=r"\[rms_norm\] weight has shape \(7,\), wanted \(8,\)"):
        ops.rms_norm(leaf(2, 8), leaf(7))
    with pytest.raises(ShapeError, match=r"\[matmul\] shapes .* inner sizes 8 and 7 differ"):
        ops.matmul(leaf(2, 8), leaf(7, 2))
    with pytest.raises(DTypeError, match=r"\[attention\] dtypes must be equal"):
        ops.attention(leaf(1, 3, 4, 8), leaf(1, 3, 4, 8, dtype=dtypes.f16), leaf(1, 3, 4, 8))
    with pytest.raises(InputError, match=r"\[softmax\] attributes \['dim'\]; it takes \['axis'\]"):
        TABLE["softmax"](leaf(2, 3), dim=1)


@pytest.mark.parametrize("target", [-1, 5, -101])
def test_a_target_outside_the_classes_raises_at_the_run(target):
    losses = ops.cross_entropy(np.zeros((2, 5), np.float32), np.array([1, target]))
    with pytest.raises(InputError, match=r"\[cross_entropy\] indices"):
        BACKEND.compile(Graph({"y": losses})).run({})


def test_losses_take_the_shape_of_the_targets():
    targets = leaf(B, 3, dtype=dtypes.i64)
    assert ops.cross_entropy(leaf(B, 3, 50), targets).shape == (B, 3)
    assert ops.linear_cross_entropy(leaf(B, 3, 8), leaf(50, 8), targets).shape == (B, 3)
    with pytest.raises(ShapeError, match=r"\[cross_entropy\] logits .* and targets"):
        ops.cross_entropy(leaf(B, 50), targets)


def test_define_refuses_half_a_row():
    whole = {
        "infer": lambda x: x, "gradient": NoGradient("a test"), "samples": [Sample(lambda r: ())],
        "tolerance": {dtypes.f32: 0.0}, "doc": "Nothing.",
    }  # fmt: skip
    for missing in ("samples", "tolerance", "doc"):
        with pytest.raises(AssertionError, match=f"half has no {missing}"):
            define("half", **(whole | {missing: type(whole[missing])()}))
    with pytest.raises(AssertionError, match="half is fused but has no fallback"):
        define("half", fused=True, **whole)
    with pytest.raises(AssertionError, match="add is defined twice"):
        define("add", **whole)
    assert "half" not in TABLE
