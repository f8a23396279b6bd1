"""Malformed GGUF files: each a typed error that names the field, with little memory."""

import contextlib
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf_bytes import ARRAY, BOOL, I32, STRING, U8, U32, U64, Header, array, pair, string, tensor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trivet.errors import GGUFError, UnsupportedError
from trivet.formats.gguf import GGUFFile

I8, Q8_0, IQ1_S = 24, 8, 19  # tensor types
HUGE = [2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]
LIMIT = 1 << 20  # bytes a hostile file of a few hundred may make the reader hold


def refused(path: Path, content: bytes, field: str) -> None:
    """Opening `content` raises GGUFError whose message has `field`, and holds less than LIMIT meanwhile."""
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(GGUFError) as caught:
            GGUFFile.open(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert field in str(caught.value), str(caught.value)
    assert len(str(caught.value)) < 1000
    assert peak < LIMIT


def test_truncation_at_every_byte(tmp_path: Path) -> None:
    header = Header(
        pairs=[
            pair("a", STRING, string("llama")),
            pair("b", ARRAY, array(STRING, 2, string("x") + string("yz"))),
            pair("c", ARRAY, array(U64, 2, bytes(16))),
            pair("d", ARRAY, array(ARRAY, 1, array(I32, 1, bytes(4)))),
            pair("e", BOOL, b"\1"),
        ],
        data=bytes(100),  # the last tensor ends with the file
    )
    whole = header.build()
    path = tmp_path / "f"
    path.write_bytes(whole)
    assert len(GGUFFile.open(path).tensors) == 2
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(GGUFError, match=r"\[gguf\] .*: .+: "):
            GGUFFile.open(path)


@pytest.mark.parametrize("huge", HUGE)
@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda n: Header(n_tensors=n), "n_tensors"),
        (lambda n: Header(n_kv=n), "n_kv"),
        (lambda n: Header([string("key", n) + bytes(40)]), "metadata key 0 length"),
        (lambda n: Header([pair("k", STRING, string("v", n))]), "metadata 'k' length"),
        (lambda n: Header([pair("k", ARRAY, array(U8, n, b""))]), "metadata 'k' array length"),
        (lambda n: Header([pair("k", ARRAY, array(U64, n, b""))]), "metadata 'k' array length"),
        (lambda n: Header([pair("k", ARRAY, array(STRING, n, b""))]), "metadata 'k' array length"),
        (lambda n: Header([pair("k", ARRAY, array(ARRAY, n, b""))]), "metadata 'k' array length"),
        (lambda n: Header([pair("k", ARRAY, array(STRING, 1, string("", n)))]), "metadata 'k'[0]"),
        (
            lambda n: Header([pair("k", ARRAY, array(STRING, 2, string("") + string("", n)))]),
            "metadata 'k'[1]",
        ),
        (lambda n: Header([pair("k", ARRAY, array(ARRAY, 1, array(U8, n, b"")))]), "'k'[0] array length"),
        (lambda n: Header(tensors=[string("t", n) + bytes(40)]), "tensor 0 name length"),
        (lambda n: Header(tensors=[tensor("t", (n,), I8)]), "tensor 't' "),
        (lambda n: Header(tensors=[tensor("t", (8, n))]), "tensor 't' "),
        (lambda n: Header(tensors=[tensor("t", (n & ~31, n), Q8_0)]), "tensor 't' "),
        (lambda n: Header(tensors=[tensor("t", offset=n & ~31)]), "tensor 't' offset"),
        (lambda n: Header(tensors=[tensor("t", (0,), offset=n & ~31)]), "tensor 't' offset"),
    ],
)
def test_huge_numbers(tmp_path: Path, make: Callable[[int], Header], field: str, huge: int) -> None:
    refused(tmp_path / "f", make(huge).build(), field)


@pytest.mark.parametrize("n_dims", [5, 2**31, 2**32 - 1])
def test_too_many_dimensions(tmp_path: Path, n_dims: int) -> None:
    refused(
        tmp_path / "f", Header(tensors=[tensor("t", (1,) * 5, n_dims=n_dims)]).build(), "tensor 't' n_dims"
    )


@pytest.mark.parametrize(
    "dims",
    [
        (2**32, 2**32),  # 2**64 wraps to 0
        (2**33, 2**31, 8),
        (2**16, 2**16, 2**16, 2**16),
        (8, 2**61 + 1),  # 2**64 + 8 wraps to 8
        (2**63 + 4, 2),
        (2**62, 4, 0),  # empty, yet no array can have this shape
        (2**60, 0),
    ],
)
def test_dims_whose_product_wraps(tmp_path: Path, dims: tuple[int, ...]) -> None:
    refused(tmp_path / "f", Header(tensors=[tensor("t", dims)]).build(), "tensor 't' dims")


def test_bytes_that_wrap_where_elements_do_not(tmp_path: Path) -> None:
    # 2**62 + 8 elements fit 63 bits; their size in bytes, 2**64 + 32, wraps to 32
    refused(tmp_path / "f", Header(tensors=[tensor("t", (2**62 + 8,))]).build(), "tensor 't' dims")
    refused(tmp_path / "f", Header(tensors=[tensor("t", (2**60 - 8,))]).build(), "tensor 't' offset")


@pytest.mark.parametrize(
    "offset", [2**64 - 32, 2**64 - 128, 2**63, 2**63 - 32, 128, 160, 2**40], ids=lambda n: hex(n)
)
def test_offsets_out_of_range(tmp_path: Path, offset: int) -> None:
    # start + offset + nbytes wraps back into the file for the first ones
    refused(tmp_path / "f", Header(tensors=[tensor("t", (8,), 0, offset)]).build(), "tensor 't' offset")


@pytest.mark.parametrize("offset", [1, 4, 16, 31, 33])
def test_misaligned_offsets(tmp_path: Path, offset: int) -> None:
    refused(tmp_path / "f", Header(tensors=[tensor("t", (8,), 0, offset)]).build(), "alignment of 32")


@pytest.mark.parametrize(
    "second",
    [
        tensor("b", (8,), 0, 0),
        tensor("b", (1,), 0, 0),
        tensor("b", (8,), 0, 32),
        tensor("b", (256,), IQ1_S, 32),
    ],
)
def test_overlapping_tensors(tmp_path: Path, second: bytes) -> None:
    refused(tmp_path / "f", Header(tensors=[tensor("a", (16,), 0, 0), second]).build(), "overlaps")
    refused(tmp_path / "f", Header(tensors=[second, tensor("a", (16,), 0, 0)]).build(), "overlaps")


@pytest.mark.parametrize("alignment", [0, 1, 2, 4, 7, 24, 33, 2**31 - 1, 2**32 - 1])
def test_wrong_alignment(tmp_path: Path, alignment: int) -> None:
    header = Header([pair("general.alignment", U32, struct.pack("<I", alignment))])
    refused(tmp_path / "f", header.build(), "general.alignment")


def test_huge_alignment(tmp_path: Path) -> None:
    header = Header([pair("general.alignment", U32, struct.pack("<I", 2**31))])
    refused(tmp_path / "f", header.build(), "tensor 'a' offset")


@pytest.mark.parametrize(
    "value",
    [
        (STRING, string("32")),
        (U64, struct.pack("<Q", 32)),
        (ARRAY, array(U32, 1, struct.pack("<I", 32))),
        (BOOL, b"\1"),
    ],
)
def test_alignment_of_a_wrong_type(tmp_path: Path, value: tuple[int, bytes]) -> None:
    refused(
        tmp_path / "f", Header([pair("general.alignment", *value)]).build(), "general.alignment: has type"
    )


@pytest.mark.parametrize("kind", [13, 14, 255, 2**31, 2**32 - 1])
def test_unknown_types(tmp_path: Path, kind: int) -> None:
    refused(tmp_path / "f", Header([pair("k", kind, bytes(8))]).build(), f"metadata 'k': has type {kind}")
    unknown = Header([pair("k", ARRAY, array(kind, 1, bytes(8)))])
    refused(tmp_path / "f", unknown.build(), f"metadata 'k' element type: is {kind}")
    nested = Header([pair("k", ARRAY, array(ARRAY, 1, array(kind, 1, bytes(8))))])
    refused(tmp_path / "f", nested.build(), f"metadata 'k'[0] element type: is {kind}")


@pytest.mark.parametrize("kind", [4, 5, 31, 36, 42, 1000, 2**32 - 1])
def test_unknown_tensor_types(tmp_path: Path, kind: int) -> None:
    refused(
        tmp_path / "f", Header(tensors=[tensor("t", (256,), kind)]).build(), f"tensor 't' type: is {kind}"
    )


@pytest.mark.parametrize(
    ("dims", "kind"), [((31,), Q8_0), ((), Q8_0), ((128,), 12), ((1, 32), Q8_0), ((8,), IQ1_S)]
)
def test_rows_that_do_not_divide_into_blocks(tmp_path: Path, dims: tuple[int, ...], kind: int) -> None:
    refused(tmp_path / "f", Header(tensors=[tensor("t", dims, kind)]).build(), "tensor 't' dims")


def test_duplicates_and_empty_names(tmp_path: Path) -> None:
    twice = [pair("k", U8, b"\1"), pair("k", U8, b"\1")]
    refused(tmp_path / "f", Header(twice).build(), "metadata 'k': appears twice")
    refused(
        tmp_path / "f",
        Header(tensors=[tensor("t", offset=0), tensor("t", offset=32)]).build(),
        "'t': appears twice",
    )
    refused(tmp_path / "f", Header([pair("", U8, b"\1")]).build(), "metadata key 0")
    refused(tmp_path / "f", Header(tensors=[tensor("")]).build(), "tensor 0 name")
    refused(tmp_path / "f", Header([pair("k" * 65536, U8, b"\1")]).build(), "65535")


@pytest.mark.parametrize("bad", [b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80"])
def test_invalid_utf8(tmp_path: Path, bad: bytes) -> None:
    refused(tmp_path / "f", Header([pair(bad, U8, b"\1")]).build(), "metadata key 0: is not UTF-8")
    refused(tmp_path / "f", Header([pair("k", STRING, string(bad))]).build(), "metadata 'k': is not UTF-8")
    # a character split over two strings is two invalid strings
    words = string("ok") + string(bad) + string(b"\x80")
    refused(
        tmp_path / "f", Header([pair("k", ARRAY, array(STRING, 3, words))]).build(), "'k'[1]: is not UTF-8"
    )
    refused(tmp_path / "f", Header(tensors=[tensor(bad)]).build(), "tensor 0 name: is not UTF-8")


def test_bools_that_are_neither(tmp_path: Path) -> None:
    refused(tmp_path / "f", Header([pair("k", BOOL, b"\2")]).build(), "metadata 'k'")
    refused(tmp_path / "f", Header([pair("k", ARRAY, array(BOOL, 2, b"\1\xff"))]).build(), "value 255")


def test_arrays_nested_too_deep(tmp_path: Path) -> None:
    value = array(U8, 0, b"")
    for _ in range(7):
        value = array(ARRAY, 1, value)
    Header([pair("k", ARRAY, value)]).save(tmp_path / "f")
    assert "k" in GGUFFile.open(tmp_path / "f").metadata
    refused(tmp_path / "f", Header([pair("k", ARRAY, array(ARRAY, 1, value))]).build(), "deeper than 8")
    bomb = array(ARRAY, 1, b"") * 5000
    refused(tmp_path / "f", Header([pair("k", ARRAY, bomb)]).build(), "deeper than 8")


def test_too_many_arrays_inside_arrays(tmp_path: Path) -> None:
    inner = array(U8, 0, b"")
    Header([pair("k", ARRAY, array(ARRAY, 2**14, inner * 2**14))]).save(tmp_path / "f")
    assert len(GGUFFile.open(tmp_path / "f").metadata["k"]) == 2**14
    half = array(ARRAY, 2**13, inner * 2**13)
    bomb = Header([pair("k", ARRAY, half), pair("l", ARRAY, half), pair("m", ARRAY, array(ARRAY, 1, inner))])
    (tmp_path / "f").write_bytes(bomb.build())
    with pytest.raises(GGUFError, match="metadata 'm': makes 16385 arrays"):
        GGUFFile.open(tmp_path / "f")


@pytest.mark.parametrize("version", [0, 4, 255, 2**32 - 1])
def test_unknown_versions(tmp_path: Path, version: int) -> None:
    refused(tmp_path / "f", Header(version=version).build(), f"version: is {version}")


def test_known_but_unsupported_versions(tmp_path: Path) -> None:
    Header(version=1).save(tmp_path / "f")
    with pytest.raises(UnsupportedError, match="version 1"):
        GGUFFile.open(tmp_path / "f")
    (tmp_path / "f").write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
    with pytest.raises(UnsupportedError, match="big-endian"):
        GGUFFile.open(tmp_path / "f")


def test_messages_of_hostile_names_stay_one_short_line(tmp_path: Path) -> None:
    name = "\x1b[2J\n" + "x" * 5000
    (tmp_path / "f").write_bytes(Header(tensors=[tensor(name, kind=99)]).build())
    with pytest.raises(GGUFError) as caught:
        GGUFFile.open(tmp_path / "f")
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


VALID = Header(
    pairs=[
        pair("general.alignment", U32, struct.pack("<I", 32)),
        pair("words", ARRAY, array(STRING, 2, string("é") + string("b"))),
        pair("nested", ARRAY, array(ARRAY, 1, array(BOOL, 2, b"\0\1"))),
    ],
    tensors=[tensor("a", (8,), 0, 0), tensor("b", (32, 2), Q8_0, 32), tensor("c", (256,), IQ1_S, 128)],
    data=bytes(192),
).build()


@settings(deadline=None, max_examples=600, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), min_size=1, max_size=6),
    st.integers(0, len(VALID)),
)
def test_any_bytes_open_or_give_a_typed_error(tmp_path: Path, edits: list[tuple[int, int]], cut: int) -> None:
    content = bytearray(VALID)
    for at, value in edits:
        content[at] = value
    path = tmp_path / "f"
    path.write_bytes(content[: len(VALID) if cut < len(VALID) // 2 else cut])
    with contextlib.suppress(GGUFError, UnsupportedError):  # any other exception fails the test
        file = GGUFFile.open(path)
        for name in file.tensors:
            assert file.array(name).shape == file.tensors[name].shape


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, len(VALID) - 192), st.sampled_from(["<I", "<Q"]), st.sampled_from(HUGE), st.integers(-9, 9)
)
def test_any_number_may_be_huge(tmp_path: Path, at: int, code: str, number: int, near: int) -> None:
    wide = struct.pack("<Q", (number + near) % 2**64)[: struct.calcsize(code)]
    content = VALID[:at] + wide + VALID[at + len(wide) :]
    (tmp_path / "f").write_bytes(content)
    with contextlib.suppress(GGUFError, UnsupportedError):
        GGUFFile.open(tmp_path / "f")


def test_a_string_is_utf8_by_itself(tmp_path: Path) -> None:
    """A character cut off at a string's end must not be completed by the length that follows, 0x80."""
    whole, long = string("a\u3042"), string("b" * 128)
    path = tmp_path / "m.gguf"
    path.write_bytes(Header(pairs=[pair("t", ARRAY, array(STRING, 3, whole + long + whole))]).build())
    assert GGUFFile.open(path).metadata["t"] == ["a\u3042", "b" * 128, "a\u3042"]
    cut = struct.pack("<Q", 3) + b"a\xe3\x81"
    refused(path, Header(pairs=[pair("t", ARRAY, array(STRING, 2, cut + long))]).build(), "is not UTF-8")
