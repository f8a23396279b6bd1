"""The two GGUF readers, Python's and the core's, refuse the same files."""

import ctypes
import os
import random
from pathlib import Path

import pytest
from gguf_bytes import ARRAY, BOOL, F64, I32, STRING, U8, U32, U64, Header, array, pair, string, tensor

from trivet import _native as core
from trivet.errors import TrivetError
from trivet.formats.gguf import GGUFFile

WORD = pair("k", STRING, string("x"))


def nested(depth: int, count: int = 1) -> bytes:
    return array(ARRAY, count, nested(depth - 1)) if depth else array(U8, 1, b"\1")


FILES = {
    "sound": Header(),
    "no tensors": Header(pairs=[WORD], tensors=[], data=b""),
    "a zero dimension": Header(tensors=[tensor("a", (8, 0))]),
    "a zero dimension beside huge ones": Header(tensors=[tensor("a", (0, 2**40, 2**40))]),
    "no dimensions": Header(tensors=[tensor("a", ())]),
    "2^60 elements": Header(tensors=[tensor("a", (2**60,), 24)]),
    "dimensions that wrap": Header(tensors=[tensor("a", (2**32, 2**32))]),
    "five dimensions": Header(tensors=[tensor("a", (1,) * 5)]),
    "a row of half a block": Header(tensors=[tensor("a", (48,), 8)]),
    "a row of no block": Header(tensors=[tensor("a", (0,), 8)]),
    "an unknown tensor type": Header(tensors=[tensor("a", (8,), 99)]),
    "a retired tensor type": Header(tensors=[tensor("a", (8,), 4)]),
    "a tensor type not computed with": Header(tensors=[tensor("a", (256,), 19)]),
    "an offset between alignments": Header(tensors=[tensor("a", (8,), 0, 16)]),
    "an offset past the end": Header(tensors=[tensor("a", (8,), 0, 2**63)]),
    "an empty tensor at the end": Header(tensors=[tensor("a", (0,), 0, 128)]),
    "an empty tensor past the end": Header(tensors=[tensor("a", (0,), 0, 160)]),
    "tensors that overlap": Header(tensors=[tensor("a", (16,)), tensor("b", (8,), 0, 32)]),
    "an overlap with an empty tensor inside": Header(
        tensors=[tensor("a", (16,)), tensor("e", (0,), 0, 32), tensor("b", (8,), 0, 32)]
    ),
    "an empty tensor inside another": Header(tensors=[tensor("a", (16,)), tensor("e", (0,), 0, 32)]),
    "two tensors of one name": Header(tensors=[tensor("a", (1,)), tensor("a", (1,), 0, 32)]),
    "a tensor without a name": Header(tensors=[tensor("", (8,))]),
    "a name that is not UTF-8": Header(tensors=[tensor(b"\xff", (8,))]),
    "a key that is not UTF-8": Header(pairs=[pair(b"\xc3(", U8, b"\1")]),
    "a text that is not UTF-8": Header(pairs=[pair("k", STRING, string(b"\xed\xa0\x80"))]),
    "a text in an array that is not UTF-8": Header(
        pairs=[pair("k", ARRAY, array(STRING, 2, string("a") + string(b"\x80")))]
    ),
    "a key without a letter": Header(pairs=[pair("", U8, b"\1")]),
    "a long key": Header(pairs=[pair("k" * 65535, U8, b"\1")]),
    "a key too long": Header(pairs=[pair("k" * 65536, U8, b"\1")]),
    "two keys of one name": Header(pairs=[WORD, WORD]),
    "a bool of 2": Header(pairs=[pair("k", BOOL, b"\2")]),
    "a bool of 2 in an array": Header(pairs=[pair("k", ARRAY, array(BOOL, 3, b"\0\1\2"))]),
    "an unknown type": Header(pairs=[pair("k", 13, bytes(8))]),
    "an unknown element type": Header(pairs=[pair("k", ARRAY, array(13, 1, bytes(8)))]),
    "an empty array": Header(pairs=[pair("k", ARRAY, array(F64, 0, b""))]),
    "a huge array": Header(pairs=[pair("k", ARRAY, array(U64, 2**61, b""))]),
    "a huge array of texts": Header(pairs=[pair("k", ARRAY, array(STRING, 2**61, b""))]),
    "a huge text": Header(pairs=[pair("k", STRING, string("x", 2**64 - 1))]),
    "an array of no arrays": Header(pairs=[pair("k", ARRAY, array(ARRAY, 0, b""))]),
    **{f"arrays {d} deep": Header(pairs=[pair("k", ARRAY, nested(d))]) for d in (1, 7, 8, 9)},
    "many inner arrays": Header(pairs=[pair("k", ARRAY, array(ARRAY, 16384, array(U8, 0, b"") * 16384))]),
    "too many inner arrays": Header(pairs=[pair("k", ARRAY, array(ARRAY, 16385, array(U8, 0, b"") * 16385))]),
    **{
        f"an alignment of {a}": Header(pairs=[pair("general.alignment", U32, a.to_bytes(4, "little"))])
        for a in (0, 1, 4, 8, 24, 32, 64, 2**31)
    },
    "an alignment of another type": Header(pairs=[pair("general.alignment", I32, bytes([32, 0, 0, 0]))]),
    "version 1": Header(version=1),
    "version 2": Header(version=2),
    "version 0": Header(version=0),
    "version 4": Header(version=4),
    "big-endian": Header(version=3 << 24),
    "another magic": Header(magic=b"GGUX"),
    **{f"{n} tensors": Header(n_tensors=n) for n in (0, 1, 3, 2**32, 2**64 - 1)},
    **{f"{n} pairs": Header(n_kv=n) for n in (0, 1, 3, 2**32, 2**64 - 1)},
}


def python(path: Path) -> str:
    try:
        GGUFFile.open(path)
    except TrivetError as error:
        return type(error).__name__
    return "read"


def native(path: Path) -> str:
    model = ctypes.c_void_p()
    try:
        core.tv_model_open(os.fsencode(path), ctypes.byref(model))
    except TrivetError as error:
        return type(error).__name__
    core.tv_model_free(model)
    return "read"


@pytest.mark.parametrize("name", FILES)
def test_the_same_verdict(name: str, tmp_path: Path) -> None:
    path = FILES[name].save(tmp_path / "f.gguf")
    assert native(path) == python(path)


def test_the_list_has_both_kinds(tmp_path: Path) -> None:
    verdicts = [python(header.save(tmp_path / "f.gguf")) for header in FILES.values()]
    assert verdicts.count("read") > 10
    assert verdicts.count("GGUFError") > 30


def test_the_same_verdict_on_damaged_files(tmp_path: Path) -> None:
    rng = random.Random(7)
    path, whole = tmp_path / "f.gguf", Header().build()
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 1, 2, 4))):
            data[rng.randrange(len(whole) - 128)] = rng.choice(
                (0, 1, 2, 9, 127, 128, 255, rng.randrange(256))
            )
        path.write_bytes(data[: rng.choice((len(data), len(data), rng.randrange(len(data))))])
        assert native(path) == python(path), bytes(data)
