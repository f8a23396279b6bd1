"""GGUF headers written number by number, so that tests can write wrong ones."""

import struct
from dataclasses import dataclass, field
from pathlib import Path

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)


def string(text: str | bytes, length: int | None = None) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data) if length is None else length) + data


def array(kind: int, count: int, data: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + data


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def tensor(
    name: str | bytes, dims: tuple[int, ...] = (8,), kind: int = 0, offset: int = 0, n_dims: int | None = None
) -> bytes:
    count = len(dims) if n_dims is None else n_dims
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", count, *dims, kind, offset)


@dataclass
class Header:
    """A small valid file by default: two pairs, two tensors of one aligned run of bytes each."""

    pairs: list[bytes] = field(
        default_factory=lambda: [
            pair("general.architecture", STRING, string("llama")),
            pair("tokens", ARRAY, array(STRING, 3, string("a") + string("") + string("é"))),
        ]
    )
    tensors: list[bytes] = field(
        default_factory=lambda: [tensor("a", (8,), 0, 0), tensor("b.weight", (32, 2), 8, 32)]
    )
    data: bytes = bytes(range(128))  # 32 for a, 68 for b, padding
    magic: bytes = b"GGUF"
    version: int = 3
    n_tensors: int | None = None
    n_kv: int | None = None
    alignment: int = 32

    def build(self) -> bytes:
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_kv = len(self.pairs) if self.n_kv is None else self.n_kv
        head = self.magic + struct.pack("<IQQ", self.version, n_tensors, n_kv)
        head += b"".join(self.pairs) + b"".join(self.tensors)
        return head.ljust(-(-len(head) // self.alignment) * self.alignment, b"\0") + self.data

    def save(self, path: Path) -> Path:
        path.write_bytes(self.build())
        return path
