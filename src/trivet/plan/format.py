"""Plan bytes: writing and reading the format of docs/plan-format.md.

    magic "TVPLAN\\r\\n" | version u32 | total u64 | name str
    dims    u32 count, each: name str | smallest i64 | largest i64
    values  u32 count, each: kind u8 | dtype u8 | rank u8 | 0 u8 | name str
                             rank sizes: scale i64 | dim u32 | offset i64
                             of a constant: nbytes u64 | bytes
    ops     u32 count, each: row str | counts of attributes, inputs, outputs u32
                             attributes: key str | type u8 | payload
                             inputs: value u32          outputs: value u32 | alias i32
    outputs u32 count, each: name str | value u32
    updates u32 count, each: state u32 | value u32
    checksum u32, CRC-32 of all before it

`decode` trusts nothing: whatever it returns satisfies rules 1 to 5 of "What the verifier requires" there.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

from trivet import dtypes
from trivet.errors import InputError, PlanError
from trivet.graph import Dim, Size
from trivet.plan.structure import KINDS, LARGEST_DIM, MAX_RANK, Attr, Op, Plan, Value
from trivet.plan.verify import verify

MAGIC = b"TVPLAN\r\n"
VERSION = 1
NO_DIM = 0xFFFFFFFF

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


# --- writing ------------------------------------------------------------------------------------------


def encode(plan: Plan) -> bytes:
    """The bytes of a plan. Equal plans give equal bytes."""
    dim_ids = {name: i for i, name in enumerate(plan.dims)}
    body = b"".join(
        [
            _str(plan.name),
            _list(_str(n) + struct.pack("<qq", *bounds) for n, bounds in plan.dims.items()),
            _list(_value(v, dim_ids) for v in plan.values),
            _list(map(_op, plan.ops)),
            _list(_str(n) + struct.pack("<I", v) for n, v in plan.outputs.items()),
            _list(struct.pack("<II", s, v) for s, v in plan.updates.items()),
        ]
    )
    head = MAGIC + struct.pack("<IQ", VERSION, len(MAGIC) + 12 + len(body) + 4)
    return head + body + struct.pack("<I", zlib.crc32(head + body))


def _str(text: str) -> bytes:
    if "\0" in text:
        raise InputError(f"[plan] the text {text!r}: a plan's text has no NUL")
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def _list(entries: Iterable[bytes]) -> bytes:
    items = list(entries)
    return struct.pack("<I", len(items)) + b"".join(items)


def _value(value: Value, dim_ids: Mapping[str, int]) -> bytes:
    head = struct.pack("<BBBB", KINDS.index(value.kind), value.dtype.id, len(value.shape), 0)
    sizes = b"".join(
        struct.pack("<qIq", s.scale, dim_ids[s.name], s.offset)
        if isinstance(s, Dim)
        else struct.pack("<qIq", 0, NO_DIM, s)
        for s in value.shape
    )
    data = struct.pack("<Q", len(value.data)) + value.data if value.kind == "constant" else b""
    return head + _str(value.name) + sizes + data


def _op(op: Op) -> bytes:
    return b"".join(
        [
            _str(op.name),
            struct.pack("<III", len(op.attrs), len(op.inputs), len(op.outputs)),
            *(_str(key) + _attr(value) for key, value in sorted(op.attrs.items())),
            struct.pack(f"<{len(op.inputs)}I", *op.inputs),
            *(struct.pack("<Ii", *pair) for pair in zip(op.outputs, op.aliases, strict=True)),
        ]
    )


def _attr(value: Attr) -> bytes:
    if isinstance(value, str):
        return b"\x02" + _str(value)
    if isinstance(value, float):
        return struct.pack("<Bd", 1, value)
    if isinstance(value, int):
        return struct.pack("<Bq", 0, value)
    if any(isinstance(v, float) for v in value):
        return struct.pack(f"<BI{len(value)}d", 4, len(value), *value)
    return struct.pack(f"<BI{len(value)}q", 3, len(value), *value)


# --- reading ------------------------------------------------------------------------------------------


def decode(data: bytes) -> Plan:
    """The plan in `data`, verified; anything wrong raises PlanError that names the field."""
    reader = _Reader(data)
    reader.header()
    name = reader.text("name")
    dims = reader.unique("dims", 20, reader.dim)
    dim_names = list(dims)
    values = tuple(reader.entries("values", 8, lambda: reader.value(dim_names)))
    ops = tuple(reader.entries("ops", 16, reader.op))
    outputs = reader.unique("outputs", 8, lambda: (reader.text("output name"), reader.u32("output value")))
    updates = reader.unique("updates", 8, lambda: (reader.u32("update state"), reader.u32("update value")))
    reader.end()
    plan = Plan(name, dims, values, ops, outputs, updates)
    verify(plan)
    return plan


class _Reader:
    """A cursor that never reads past the end and never allocates for a count it has not checked."""

    def __init__(self, data: bytes):
        self.data = bytes(data)
        self.at = 0
        self.stop = max(len(self.data) - 4, 0)  # where the checksum stands

    def take(self, field: str, count: int) -> bytes:
        if count > self.stop - self.at:
            raise PlanError(
                f"[plan] {field} at byte {self.at} wants {count} bytes, {self.stop - self.at} are left"
            )
        self.at += count
        return self.data[self.at - count : self.at]

    def header(self) -> None:
        if self.take("magic", 8) != MAGIC:
            raise PlanError(f"[plan] magic is {self.data[:8]!r}, wanted {MAGIC!r}")
        version = self.u32("version")
        if version != VERSION:
            raise PlanError(f"[plan] version is {version}; this build reads version {VERSION}")
        total = self.u64("total")
        if total != len(self.data):
            raise PlanError(f"[plan] total is {total}, but there are {len(self.data)} bytes")
        checksum = struct.unpack_from("<I", self.data, self.stop)[0]
        found = zlib.crc32(self.data[: self.stop])
        if checksum != found:
            raise PlanError(f"[plan] checksum is {checksum:#010x}, the bytes give {found:#010x}")

    def end(self) -> None:
        if self.at != self.stop:
            raise PlanError(f"[plan] {self.stop - self.at} bytes follow the updates")

    def u8(self, field: str) -> int:
        return self.take(field, 1)[0]

    def u32(self, field: str) -> int:
        return int.from_bytes(self.take(field, 4), "little")

    def u64(self, field: str) -> int:
        return int.from_bytes(self.take(field, 8), "little")

    def i32(self, field: str) -> int:
        return int.from_bytes(self.take(field, 4), "little", signed=True)

    def i64(self, field: str) -> int:
        return int.from_bytes(self.take(field, 8), "little", signed=True)

    def f64(self, field: str) -> float:
        return float(struct.unpack("<d", self.take(field, 8))[0])

    def text(self, field: str) -> str:
        raw = self.take(field, self.u32(f"length of {field}"))
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise PlanError(f"[plan] {field} is not UTF-8: {error}") from None
        if "\0" in text:
            raise PlanError(f"[plan] {field} is {text!r}; text has no NUL")
        return text

    def count(self, field: str, smallest: int) -> int:
        """A count whose entries take at least `smallest` bytes each."""
        count = self.u32(f"count of {field}")
        if count * smallest > self.stop - self.at:
            raise PlanError(f"[plan] count of {field} is {count}, only {self.stop - self.at} bytes are left")
        return count

    def entries(self, field: str, smallest: int, entry: Callable[[], T]) -> list[T]:
        return [entry() for _ in range(self.count(field, smallest))]

    def unique(self, field: str, smallest: int, entry: Callable[[], tuple[K, T]]) -> dict[K, T]:
        result: dict[K, T] = {}
        for key, value in self.entries(field, smallest, entry):
            if key in result or key == "":
                raise PlanError(f"[plan] {field}: {key!r} is empty or there twice")
            result[key] = value
        return result

    def dim(self) -> tuple[str, tuple[int, int]]:
        name, low, high = self.text("dim name"), self.i64("dim smallest"), self.i64("dim largest")
        if not 0 <= low <= high <= LARGEST_DIM:
            raise PlanError(f"[plan] dim {name!r} in {low}..{high}; wanted 0 <= low <= high <= {LARGEST_DIM}")
        return name, (low, high)

    def value(self, dims: list[str]) -> Value:
        kind, dtype, rank, zero = self.take("value", 4)
        if kind >= len(KINDS) or dtype not in dtypes.BY_ID or rank > MAX_RANK or zero:
            raise PlanError(f"[plan] a value of kind {kind}, dtype {dtype}, rank {rank}, zero {zero}")
        name = self.text("value name")
        shape = tuple(self.size(dims) for _ in range(rank))
        data = self.take("constant", self.u64("nbytes")) if KINDS[kind] == "constant" else b""
        return Value(KINDS[kind], dtypes.BY_ID[dtype], shape, name, data)

    def size(self, dims: list[str]) -> Size:
        scale, dim, offset = self.i64("size scale"), self.u32("size dim"), self.i64("size offset")
        if dim == NO_DIM and scale == 0:
            return offset
        if dim >= len(dims) or scale < 1:
            raise PlanError(f"[plan] a size of scale {scale} and dim {dim}; there are {len(dims)} dims")
        return Dim(dims[dim], scale, offset)

    def op(self) -> Op:
        name = self.text("row name")
        n_attrs, n_inputs, n_outputs = (
            self.u32(f"{name}: count of {w}") for w in ("attrs", "inputs", "outputs")
        )
        if 5 * n_attrs + 4 * n_inputs + 8 * n_outputs > self.stop - self.at:
            raise PlanError(f"[plan] {name}: counts {n_attrs}, {n_inputs}, {n_outputs} exceed the bytes left")
        attrs: dict[str, Attr] = {}
        for _ in range(n_attrs):
            key = self.text(f"{name}: attribute")
            if not key or key in attrs:
                raise PlanError(f"[plan] {name}: attribute {key!r} is empty or there twice")
            attrs[key] = self.attr(f"{name}.{key}")
        inputs = tuple(self.u32(f"{name}: input") for _ in range(n_inputs))
        pairs = [(self.u32(f"{name}: output"), self.i32(f"{name}: alias")) for _ in range(n_outputs)]
        return Op(name, attrs, inputs, tuple(p[0] for p in pairs), tuple(p[1] for p in pairs))

    def attr(self, field: str) -> Attr:
        kind = self.u8(field)
        if kind == 0:
            return self.i64(field)
        if kind == 1:
            return self.f64(field)
        if kind == 2:
            return self.text(field)
        if kind == 3:
            return tuple(self.entries(field, 8, lambda: self.i64(field)))
        if kind == 4:
            return tuple(self.entries(field, 8, lambda: self.f64(field)))
        raise PlanError(f"[plan] {field} has the attribute type {kind}; known: 0 to 4")
