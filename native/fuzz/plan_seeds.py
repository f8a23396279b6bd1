"""Writes the plan fuzzer's seeds: native/fuzz/corpus/plan/. Run it with the package on the path.

python native/fuzz/plan_seeds.py
"""

from pathlib import Path

import numpy as np

from trivet import graph, ops, plan
from trivet.backends.native import lower
from trivet.dtypes import DType, f32, i32, q4_0
from trivet.graph import Dim, Graph, Node, of_numpy
from trivet.ops.table import TABLE, Row, Typed

CORPUS = Path(__file__).parent / "corpus/plan"


def elementwise() -> Graph:
    x = graph.input("x", (Dim("T"), 4), f32)
    state = graph.state("s", (4,), f32)
    shifted = ops.add(x, graph.constant(np.arange(4, dtype=np.float32)))
    return Graph({"y": ops.reshape(shifted, (4 * Dim("T"),))}, {"s": ops.add(state, state)})


def cache() -> Graph:
    """Everything an attention layer has: aliases, pages, packed weights, several symbolic dimensions."""
    tokens = (Dim("T"),)
    ids, positions, sequences = (graph.input(n, tokens, i32) for n in ("ids", "positions", "sequences"))
    pages = graph.input("pages", (Dim("B"), Dim("P")), i32)
    table = graph.weight("table", (7, 32), q4_0)
    x = ops.reshape(ops.embedding(ids, table), (Dim("T"), 1, 32))
    keys = ops.kv_append(
        graph.state("k", (Dim("N"), 1, 32, 16), f32), x, positions, sequences, pages, transposed=True
    )
    values = ops.kv_append(
        graph.state("v", (Dim("N"), 1, 16, 32), f32), x, positions, sequences, pages, transposed=False
    )
    seen = ops.paged_attention(x, keys, values, positions, sequences, pages, scale=0.5)
    logits = ops.linear(ops.reshape(seen, (Dim("T"), 32)), table)
    return Graph({"logits": logits}, {"k": keys, "v": values})


def called(row: Row, index: int) -> Graph:
    """A sample of a row, its arrays as inputs."""
    sample = row.samples[index]
    inputs: list[Node] = []
    for i, array in enumerate(sample.make(np.random.default_rng(0))):
        kind: DType = f32 if getattr(array, "dtype", None) == np.float64 else array.dtype
        if not isinstance(array, Typed) and kind is not f32:
            kind = of_numpy(array.dtype)
        inputs.append(graph.input(f"x{i}", array.shape, kind))
    call = row(*inputs, **sample.attrs)
    outputs = call if isinstance(call, tuple) else [call]
    return Graph({f"y{i}": node for i, node in enumerate(outputs)})


def main() -> None:
    CORPUS.mkdir(parents=True, exist_ok=True)
    dims = dict.fromkeys("TBPN", (0, 100))
    for make in (elementwise, cache):
        built = plan.build(make(), dims, make.__name__)
        (CORPUS / make.__name__).write_bytes(plan.encode(built))
    for name, row in TABLE.items():
        for index in (0, len(row.samples) // 2):
            data = plan.encode(plan.build(lower(called(row, index)), {}, name))
            if len(data) < 2000:
                (CORPUS / f"{name}-{index}").write_bytes(data)


if __name__ == "__main__":
    main()
