"""One body of tests for the whole table: rows × backends × dtypes × samples.

The NumPy backend is the definition: it is held to each row's fallback, to PyTorch where PyTorch has the row
(`torch_oracle.py`), and its gradients to finite differences, all in float64. Every other backend that can be
used here is held to it, on inputs rounded to the dtype, at the row's tolerance. A new backend or row is found
by itself; a row with an empty cell fails.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from devices import EXTRA
from torch_oracle import ORACLE
from trivet import backends, dtypes, graph, ops
from trivet.autograd import grad
from trivet.backends.base import expand
from trivet.backends.numpy import BACKEND as NUMPY
from trivet.backends.numpy.program import rounded, widen
from trivet.dtypes import DType
from trivet.errors import UnsupportedError
from trivet.graph import Graph, Node
from trivet.ops.rules import PACKED_BF16
from trivet.ops.table import TABLE, NoGradient, Row, Sample, Typed

#: All that can be used here; those that compile for minutes where they are asked for (`devices.py`).
AVAILABLE = [
    name
    for name, reason in backends.available().items()
    if reason is None and (not backends.find(name).compiles_per_size or f"{name}-cpu" in EXTRA)
]
FLOATS = (dtypes.f32, dtypes.f16, dtypes.bf16)


@dataclass(frozen=True)
class Case:
    """A sample of a row in one dtype: its leaves, and their values in float64 and in storage form."""

    row: Row
    sample: Sample
    leaves: list[Node]
    wide: dict[str, Any]
    stored: dict[str, Any]
    packed: dict[str, Any]

    @property
    def outputs(self) -> list[Node]:
        made = self.row(*self.leaves, **self.sample.attrs)
        return list(made) if isinstance(made, tuple) else [made]

    def graph(self) -> Graph:
        return Graph({str(i): n for i, n in enumerate(self.outputs)})

    def run(self, backend: Any, g: Graph, exact: bool = False) -> list[Any]:
        extra = {"exact": True} if exact else {}
        program = backend.compile(g, weights=self.packed.__getitem__, **extra)
        used = {n.attrs["name"] for n in g.nodes() if n.op == "input"}
        given = {k: v for k, v in (self.wide if exact else self.stored).items() if k in used}
        out = program.run(given)
        return [backend.to_numpy(out[name]) for name in g.outputs]


def make(row: Row, index: int, dtype: DType) -> Case:
    sample = row.samples[index]
    rng = np.random.default_rng(zlib.crc32(row.name.encode()) + index)
    case = Case(row, sample, [], {}, {}, {})
    for i, value in enumerate(sample.make(rng)):
        name = f"x{i}"
        if isinstance(value, Typed) and value.dtype.is_packed:
            case.leaves.append(graph.weight(name, value.shape, value.dtype))
            case.packed[name] = value.array
            continue
        if isinstance(value, Typed):
            kind, array = value.dtype, value.array
        else:
            array = np.asarray(value)
            kind = dtype if array.dtype == np.float64 else graph.of_numpy(array.dtype)
        with np.errstate(over="ignore"):
            stored = array if array.dtype == np.uint16 else rounded(array, kind) if kind.is_float else array
        case.leaves.append(graph.input(name, array.shape, kind))
        case.stored[name] = stored
        case.wide[name] = widen(stored, kind)
    return case


def varies(sample: Sample) -> bool:
    """Whether some input takes the dtype that is tested."""
    return any(
        not isinstance(v, Typed) and np.asarray(v).dtype == np.float64
        for v in sample.make(np.random.default_rng(0))
    )


def cases(kinds: Sequence[DType]) -> Iterator[Any]:
    """Every (row, sample, dtype); a sample whose dtypes are all fixed comes once."""
    for row in TABLE.values():
        for index, sample in enumerate(row.samples):
            for dtype in kinds if varies(sample) else kinds[:1]:
                note = f" {sample.note}" if sample.note else ""
                yield pytest.param(row, index, dtype, id=f"{row.name}-{dtype}-{index}{note}")


def tolerance(row: Row, sample: Sample, dtype: DType, out: DType) -> float:
    if not out.is_float:
        return 0.0
    return row.tolerance[dtype if varies(sample) else out]


def loose(case: Case, want: Any) -> float:
    """What a product with packed weights may be off by, besides."""
    packed = max(
        (case.row.tolerance.get(leaf.dtype, 0) for leaf in case.leaves if leaf.dtype.is_packed), default=0
    )
    if packed and any(leaf.dtype is dtypes.bf16 for leaf in case.leaves):
        packed = max(packed, PACKED_BF16)
    return packed * (1 + np.max(np.abs(want), initial=0)) if packed else 0.0


def close(got: Any, want: Any, bound: float, what: str = "", besides: float = 0.0) -> None:
    """|got - want| <= bound * (1 + |want|) + besides, and infinities and NaN in the same places."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape, f"{what} shape {got.shape}, wanted {want.shape}"
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    with np.errstate(invalid="ignore"):
        error = np.abs(got - want)
        good = (
            (error <= bound * (1 + np.abs(want)) + besides) | (got == want) | (np.isnan(got) & np.isnan(want))
        )
    assert good.all(), (
        f"{what} at {np.argwhere(~good)[:4].tolist()}: got {got[~good][:4]}, wanted {want[~good][:4]}"
    )


# --- the table itself ------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_no_cell_is_empty(row: Row) -> None:
    assert row.samples
    assert row.doc.endswith(".")
    assert isinstance(row.gradient, NoGradient) or callable(row.gradient)
    assert not isinstance(row.gradient, NoGradient) or row.gradient.reason
    assert getattr(ops, row.name).__doc__, "a row has a public function"
    assert row.fallback is not None or not row.fused
    for index, sample in enumerate(row.samples):
        assert set(sample.attrs) == set(row.attrs), "a sample gives every attribute"
        for dtype in (*FLOATS, dtypes.f64) if varies(sample) else (dtypes.f32,):
            for out in make(row, index, dtype).outputs:
                assert tolerance(row, sample, dtype, out.dtype) >= 0


@pytest.mark.parametrize("name", AVAILABLE)
@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_a_backend_has_the_row(name: str, row: Row) -> None:
    backend = backends.find(name)
    calls = [make(row, i, dtypes.f32).outputs[0] for i in range(len(row.samples))]
    calls = [c.inputs[0] if c.op == "item" else c for c in calls]
    known = any(map(backend.supports, calls)) or row.fallback is not None or row.name in backend.unsupported
    assert known, (
        f"{name} does not compute {row.name}, has no fallback for it, and does not list it as unsupported"
    )
    assert set(backend.unsupported) <= set(TABLE)


# --- forward ---------------------------------------------------------------------------------------------


class Check(NamedTuple):
    """A graph for a backend to run on a case's values, and what holds the results to the definition's."""

    case: Case
    graph: Graph
    compare: Callable[[Sequence[Any]], None]

    def on(self, backend: Any) -> str | None:
        """Runs and compares; gives the reason where the backend lists a row of the graph as unsupported."""
        try:
            got = self.case.run(backend, self.graph)
        except UnsupportedError:
            listed = [backend.unsupported[n.op] for n in self.graph.nodes() if n.op in backend.unsupported]
            assert listed
            return str(listed[0])
        self.compare(got)
        return None


def forward(row: Row, index: int, dtype: DType) -> Check:
    """What the definition gives in float64, rounded, is what a backend has to give."""
    case = make(row, index, dtype)
    whole = case.graph()

    def compare(got: Sequence[Any]) -> None:
        want = case.run(NUMPY, whole, exact=True)
        for i, (node, g, w) in enumerate(zip(whole.outputs.values(), got, want, strict=True)):
            kind = node.dtype
            with np.errstate(over="ignore"):
                w = widen(rounded(w, kind), kind) if kind.is_float else w
            assert g.dtype == graph.to_numpy(kind)
            bound = tolerance(row, case.sample, dtype, kind)
            close(widen(g, kind), w, bound, f"output {i}", loose(case, w))

    return Check(case, whole, compare)


@pytest.mark.parametrize("name", AVAILABLE)
@pytest.mark.parametrize(("row", "index", "dtype"), list(cases(FLOATS)))
def test_forward(name: str, row: Row, index: int, dtype: DType) -> None:
    if reason := forward(row, index, dtype).on(backends.get(name)):
        pytest.skip(reason)


FALLBACKS = [c for c in cases((dtypes.f64,)) if c.values[0].fallback is not None]


@pytest.mark.parametrize(("row", "index", "dtype"), FALLBACKS)
def test_the_fallback_says_the_same(row: Row, index: int, dtype: DType) -> None:
    case = make(row, index, dtype)
    simpler = expand(case.graph(), lambda n: n.op != row.name)
    assert row.name not in {n.op for n in simpler.nodes()}
    bound = 1e-9 if varies(case.sample) else 1e-6  # a fallback in f32 rounds its constants
    want = case.run(NUMPY, case.graph(), exact=True)
    for g, w in zip(case.run(NUMPY, simpler, exact=True), want, strict=True):
        close(g, w, bound)


TORCH = [c for c in cases((dtypes.f64,)) if c.values[0].name in ORACLE and not make(*c.values).packed]


def as_torch(case: Case) -> list[Any]:
    return [torch.from_numpy(np.array(v)) for v in case.wide.values()]


@pytest.mark.parametrize(("row", "index", "dtype"), TORCH)
def test_torch_says_the_same(row: Row, index: int, dtype: DType) -> None:
    case = make(row, index, dtype)
    want = ORACLE[row.name](*as_torch(case), **case.sample.attrs)
    if want is None:
        pytest.skip("PyTorch has no equivalent")
    close(case.run(NUMPY, case.graph(), exact=True)[0], want.numpy(), 1e-9)


# --- gradients -------------------------------------------------------------------------------------------


def smooth() -> list[Any]:
    """The samples whose gradients are checked."""
    return [
        c
        for c in cases((dtypes.f64,))
        if c.values[0].samples[c.values[1]].gradient
        and not isinstance(c.values[0].gradient, NoGradient)
        and make(*c.values).outputs[0].dtype.is_float
        and any(leaf.dtype.is_float for leaf in make(*c.values).leaves)
    ]


SMOOTH = smooth()
#: Rows with an input that is floating and yet a constant.
CONSTANTS = {"attention": "slopes"}


def gradients(case: Case, seed: Any) -> tuple[list[Node], Graph]:
    """The floating leaves that have a gradient, and the graph of those, seeded with the input "seed"."""
    output = case.outputs[0]
    given = graph.input("seed", output.shape, output.dtype)
    case.stored["seed"], case.wide["seed"] = (
        rounded(seed, output.dtype),
        widen(rounded(seed, output.dtype), output.dtype),
    )
    leaves = [leaf for leaf in case.leaves if leaf.dtype.is_float]
    found = dict(zip(leaves, grad([output], leaves, [given]), strict=True))
    assert all(found.values()) or case.row.name in CONSTANTS
    pairs = {leaf: g for leaf, g in found.items() if g is not None}
    return list(pairs), Graph({str(i): g for i, g in enumerate(pairs.values())})


@pytest.mark.parametrize(("row", "index", "dtype"), SMOOTH)
def test_gradient_by_finite_differences(row: Row, index: int, dtype: DType) -> None:
    case, rng = make(row, index, dtype), np.random.default_rng(index)
    first = Graph({"y": case.outputs[0]})
    seed = rng.standard_normal(case.outputs[0].shape)
    leaves, g = gradients(case, seed)
    seed = case.wide["seed"]
    for leaf, slope in zip(leaves, case.run(NUMPY, g, exact=True), strict=True):
        name, step = leaf.attrs["name"], 1e-5
        base = case.wide[name]
        assert slope.shape == base.shape
        for _ in range(2):
            direction = rng.standard_normal(base.shape)
            ends = []
            for sign in (1, -1):
                case.wide[name] = base + sign * step * direction
                ends.append(case.run(NUMPY, first, exact=True)[0])
            case.wide[name] = base
            change = np.sum(seed * ((ends[0] - ends[1]) / (2 * step)))
            size = np.sum(np.abs(slope * direction))
            assert abs(change - np.sum(slope * direction)) <= 2e-6 * (1 + size), f"{row.name}: input {name}"


TORCH_SMOOTH = [c for c in SMOOTH if c.id in {t.id for t in TORCH}]


@pytest.mark.parametrize(("row", "index", "dtype"), TORCH_SMOOTH)
def test_gradient_by_torch(row: Row, index: int, dtype: DType) -> None:
    case = make(row, index, dtype)
    tensors = [t.requires_grad_(t.is_floating_point()) for t in as_torch(case)]
    y = ORACLE[row.name](*tensors, **case.sample.attrs)
    if y is None:
        pytest.skip("PyTorch has no equivalent")
    seed = np.random.default_rng(1).standard_normal(case.outputs[0].shape)
    leaves, g = gradients(case, seed)
    y.backward(gradient=tensors[0].new_tensor(case.wide["seed"], dtype=y.dtype))
    by_name = dict(zip(case.wide, tensors, strict=False))
    for leaf, ours in zip(leaves, case.run(NUMPY, g, exact=True), strict=True):
        theirs = by_name[leaf.attrs["name"]].grad
        close(ours, 0 * ours if theirs is None else theirs.numpy(), 1e-8, leaf.attrs["name"])


def backward(row: Row, index: int) -> Check | None:
    """The gradient's graph, run in float32, has to give what it gives in float64. None where it has f64."""
    case = make(row, index, dtypes.f32)
    if case.outputs[0].dtype is dtypes.f64 or any(leaf.dtype is dtypes.f64 for leaf in case.leaves):
        return None
    _, whole = gradients(case, np.random.default_rng(1).standard_normal(case.outputs[0].shape))

    def compare(got: Sequence[Any]) -> None:
        for i, (ours, want) in enumerate(zip(got, case.run(NUMPY, whole, exact=True), strict=True)):
            scale = 1 + np.max(np.abs(want), initial=0)
            close(ours / scale, want / scale, 2e-4 if case.packed else 2e-5, f"gradient {i}")

    return Check(case, whole, compare)


@pytest.mark.parametrize("name", [n for n in AVAILABLE if n != "numpy"])
@pytest.mark.parametrize(("row", "index", "dtype"), SMOOTH)
def test_gradient_on_backend(name: str, row: Row, index: int, dtype: DType) -> None:
    check = backward(row, index)
    reason = check.on(backends.get(name)) if check else "f64 is the NumPy backend's"
    if reason:
        pytest.skip(reason)
