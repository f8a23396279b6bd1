"""Plan bytes: what is written is read, and bytes that lie are refused with the field named."""

import random
import struct
import zlib

import numpy as np
import pytest

from trivet import graph, ops
from trivet.dtypes import bf16, f32, f64, i32, i64, nf4d_64, q4_0
from trivet.errors import InputError, PlanError
from trivet.graph import Dim, Graph
from trivet.plan import Op, Plan, Value, build, decode, encode

T, N = Dim("T"), Dim("N")


def sealed(body):
    """Bytes with a right total and checksum."""
    body = body[:12] + struct.pack("<Q", len(body) + 4) + body[20:]
    return body + struct.pack("<I", zlib.crc32(body))


@pytest.fixture(scope="module")
def plan():
    x = graph.input("x", (T, 64), f32)
    w = graph.weight("w", (8, 64), q4_0)
    pool = graph.state("pool", (N, 2, 16, 4), bf16)
    index = [graph.input(n, (T,), i32) for n in ("positions", "sequences")]
    pages = graph.input("pages", (N, 4), i32)
    y = ops.linear(ops.mul(x, 0.5), w)
    grown = ops.kv_append(pool, ops.reshape(y, (T, 2, 4)), *index, pages, transposed=False)
    return build(
        Graph({"y": ops.slice(y, (0, 2), (T, 8), (1, 3))}, {"pool": grown}), {"T": (1, 9), "N": (1, 5)}, "p"
    )


def small(**changes):
    """A plan y = exp(x) with some fields replaced."""
    x, y = Value("input", f32, (4,), "x"), Value("temporary", f32, (4,))
    fields = {
        "name": "p", "dims": {}, "values": (x, y), "ops": (Op("exp", {}, (0,), (1,), (-1,)),),
        "outputs": {"y": 1}, "updates": {},
    }  # fmt: skip
    return Plan(**(fields | changes))


def test_bytes_and_back(plan):
    assert decode(encode(plan)) == plan
    assert encode(decode(encode(plan))) == encode(plan)


def test_header_layout():
    data = encode(small())
    assert data[:8] == b"TVPLAN\r\n"
    assert struct.unpack_from("<IQ", data, 8) == (1, len(data))
    assert data[20:25] == b"\1\0\0\0p"
    assert struct.unpack("<I", data[-4:])[0] == zlib.crc32(data[:-4])


def test_every_attribute_type():
    attrs = {"b": 1, "f": -0.0, "i": -(2**63), "s": "grün", "v": (), "vf": (1.5, float("inf")), "vi": (1, -1)}
    plan = small(ops=(Op("exp", attrs, (0,), (1,), (-1,)),))
    assert decode(encode(plan)) == plan


def test_text_with_a_nul_cannot_be_written():
    with pytest.raises(InputError, match="no NUL"):
        encode(small(name="a\0b"))


def test_constants_of_every_kind():
    arrays = [
        np.float32([1, np.nan]),
        np.float64([2]),
        np.int64([[-1]]),
        np.zeros((0, 3), np.int32),
        np.True_,
    ]
    nodes = {str(i): graph.constant(a) for i, a in enumerate(arrays)}
    plan = build(Graph(nodes | {"b": graph.constant([1.0, 2.0], bf16)}))
    found = decode(encode(plan))
    assert [found.values[found.outputs[n]].data for n in nodes] == [a.tobytes() for a in arrays]
    assert found.values[found.outputs["b"]].data == b"\x80\x3f\x00\x40"
    assert {found.values[found.outputs["1"]].dtype, found.values[found.outputs["2"]].dtype} == {f64, i64}


def test_truncation_anywhere_is_refused(plan):
    data = encode(plan)
    for size in range(len(data)):
        with pytest.raises(PlanError):
            decode(data[:size])
        with pytest.raises(PlanError):  # the same with a total and checksum that agree
            decode(sealed(data[: max(size, 20)]) if size < len(data) - 4 else data[:size])


def test_any_flipped_byte_is_refused(plan):
    data = encode(plan)
    for at in range(len(data)):
        with pytest.raises(PlanError):
            decode(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])


def test_mutations_with_right_checksums_give_plan_errors_only(plan):
    """What is accepted can be written, and reads the same."""
    body, draw, accepted = encode(plan)[:-4], random.Random(1), 0
    for _ in range(4000):
        bad = bytearray(body)
        for _ in range(draw.randint(1, 3)):
            bad[draw.randrange(20, len(bad))] = draw.choice((0, 1, 4, 127, 128, 255))
        try:
            found = decode(sealed(bytes(bad)))
        except PlanError:
            continue
        assert decode(encode(found)) == found
        accepted += 1
    assert 0 < accepted < 4000


@pytest.mark.parametrize("count", [2**16, 2**31, 2**32 - 1])
@pytest.mark.parametrize("field", range(5))
def test_huge_counts_are_refused_before_anything_is_allocated(field, count):
    """dims, values, ops, outputs, updates: all empty but the one with the count."""
    counts = [0] * 5
    counts[field] = count
    with pytest.raises(PlanError, match="count of"):
        decode(sealed(encode(small())[:20] + struct.pack("<I5I", 0, *counts)))


X, Y = Value("input", f32, (4,), "x"), Value("temporary", f32, (4,))
STATE = Value("state", f32, (4,), "s")
EXP = Op("exp", {}, (0,), (1,), (-1,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"values": (X, X, Y)}, "input name 'x' is empty or there twice"),
        ({"values": (Value("input", f32, (4,), ""), Y)}, "input name '' is empty"),
        ({"outputs": {"": 1}}, "outputs: '' is empty"),
        ({"outputs": {"y": 2}}, "outputs reads value 2"),
        ({"ops": ()}, "outputs reads value 1, which is not there yet"),
        ({"ops": (), "outputs": {}}, "no op writes value 1"),
        ({"ops": (Op("exp", {}, (9,), (1,), (-1,)),)}, "reads value 9"),
        ({"ops": (Op("exp", {}, (1,), (1,), (-1,)),)}, "reads value 1, which is not there yet"),
        ({"ops": (EXP, EXP)}, "writes value 1, which is a leaf, out of range, or written before"),
        ({"ops": (Op("exp", {}, (0,), (0,), (-1,)),)}, "writes value 0, which is a leaf"),
        ({"ops": (Op("exp", {}, (0,), (7,), (-1,)),)}, "writes value 7"),
        ({"ops": (Op("", {}, (0,), (1,), (-1,)),)}, "the row name is empty"),
        ({"ops": (Op("exp", {}, (0,), (1,), (1,)),)}, "alias 1, but there are 1 inputs"),
        ({"ops": (Op("exp", {}, (0,), (1,), (-2,)),)}, "alias -2"),
        ({"ops": (Op("exp", {}, (0,), (1,), (0,)),)}, "writes into a input of f32"),
        ({"values": (X, Value("temporary", f32, (5,))), "ops": (Op("reshape", {}, (0,), (1,), (0,)),)},
         "cannot take the storage"),
        ({"values": (STATE, Y), "ops": (Op("exp", {}, (0, 0), (1,), (0,)),)}, "also reads by another name"),
        ({"values": (STATE, Y), "ops": (Op("exp", {}, (0,), (1,), (0,)),)}, "no update says so"),
        ({"values": (STATE, Y), "ops": (Op("exp", {}, (0,), (1,), (0,)),), "outputs": {"y": 0},
          "updates": {0: 1}}, "outputs reads value 0, which an op has written over"),
        ({"values": (STATE, Value("state", f32, (4,), "t")), "ops": (), "updates": {0: 1}},
         "'s' is given the storage of state 't'"),
        ({"values": (STATE, Value("temporary", f32, (2, 2))), "updates": {0: 1}}, "update of"),
        ({"updates": {0: 1}}, "value 0 is a input, not a state"),
        ({"values": (X, Value("temporary", f32, (-1,)))}, "a size below 0"),
        ({"values": (X, Value("temporary", f32, (2**20, 2**20, 2**10)))}, "allowed are"),
        ({"values": (X, Value("temporary", q4_0, (4, 31)))}, "divide by 32"),
        ({"values": (X, Value("temporary", q4_0, ()))}, "divide by 32"),
        ({"values": (X, Y, Value("state", nf4d_64, (64,), "q"))}, "a nf4d_64 value is no state"),
        ({"values": (Value("constant", nf4d_64, (64,), "", bytes(33)), Y)}, "its shape takes 41"),
        ({"values": (Value("weight", f32, (T,), "x"), Y), "dims": {"T": (1, 2)}}, "no symbolic dimension"),
        ({"values": (Value("constant", f32, (4,), "", b"12"), Y)}, "2 bytes are there, its shape takes 16"),
        ({"dims": {"T": (2, 1)}}, "dim 'T' in 2..1"),
        ({"dims": {"T": (0, 2**31)}}, "dim 'T'"),
    ],
)  # fmt: skip
def test_rules_of_the_verifier(changes, message):
    with pytest.raises(PlanError, match=message):
        decode(encode(small(**changes)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: b"TVPLAN\n\r" + d[8:], "magic"),
        (lambda d: d[:8] + b"\2\0\0\0" + d[12:], "version is 2"),
        (lambda d: d + b"\0", "total is"),
        (lambda d: d[:-1] + bytes([d[-1] ^ 1]), "checksum"),
        (lambda d: sealed(d[:-4] + b"\0"), "1 bytes follow the updates"),
        (lambda d: sealed(d[:24] + b"\xff" + d[25:-4]), "name is not UTF-8"),
        (lambda d: sealed(d[:24] + b"\0" + d[25:-4]), "text has no NUL"),
    ],
)
def test_the_frame(change, message):
    with pytest.raises(PlanError, match=message):
        decode(change(encode(small())))
