"""The core and Python read plan bytes alike: what one refuses, the other refuses, and neither falls over."""

import ctypes
import random
import struct
import zlib

import pytest

from trivet import _native, graph, ops
from trivet.backends import find
from trivet.dtypes import f32, i32
from trivet.errors import PlanError, UnsupportedError
from trivet.graph import Dim, Graph
from trivet.plan import build, decode, encode

NATIVE = find("native")
pytestmark = pytest.mark.skipif(NATIVE.unavailable() is not None, reason=str(NATIVE.unavailable()))
T, N = Dim("T"), Dim("N")


def sealed(body):
    return body + struct.pack("<I", zlib.crc32(body))


def body():
    """A plan with every section: dims, all kinds of values, an alias, outputs, updates."""
    x = graph.input("x", (T, 8), f32)
    pool = graph.state("pool", (N, 2, 16, 4), f32)
    index = [graph.input(n, (T,), i32) for n in ("positions", "sequences")]
    pages = graph.input("pages", (N, 4), i32)
    y = ops.mul(ops.concat([x, x], -1), graph.weight("w", (16,), f32))
    grown = ops.kv_append(pool, ops.reshape(x, (T, 2, 4)), *index, pages, transposed=False)
    graph_ = Graph({"y": ops.slice(ops.mul(y, 0.5), (0, 2), (T, 8), (1, 3))}, {"pool": grown})
    return encode(build(graph_, {"T": (1, 9), "N": (1, 5)}, "p"))[:-4]


def read_by_core(data):
    """ "read", "refused" or "no kernel"."""
    pointer = ctypes.c_void_p()
    try:
        _native.tv_plan_load(data, len(data), ctypes.byref(pointer))
    except PlanError:
        return "refused"
    except UnsupportedError:
        return "no kernel"
    _native.tv_plan_free(pointer)
    return "read"


def read_by_python(data):
    try:
        decode(data)
    except PlanError:
        return "refused"
    return "read"


def test_both_read_what_is_built():
    assert read_by_core(sealed(body())) == read_by_python(sealed(body())) == "read"


def test_both_refuse_every_truncation():
    whole = body()
    for size in range(len(whole)):
        cut = whole[:size]
        if size >= 20:
            cut = cut[:12] + struct.pack("<Q", size + 4) + cut[20:]
        assert read_by_core(sealed(cut)) == read_by_python(sealed(cut)) == "refused"


def test_both_agree_on_mutations():
    whole, draw, seen = body(), random.Random(3), {}
    for _ in range(6000):
        bad = bytearray(whole)
        for _ in range(draw.randint(1, 2)):
            bad[draw.randrange(20, len(bad))] = draw.choice((0, 1, 2, 4, 7, 8, 127, 128, 255))
        data = sealed(bytes(bad))
        verdicts = (read_by_core(data), read_by_python(data))
        seen[verdicts] = seen.get(verdicts, 0) + 1
        assert verdicts[0] == verdicts[1] or verdicts[0] == "no kernel", bytes(bad)
    assert {("read", "read"), ("refused", "refused"), ("no kernel", "read")} <= set(seen)
