"""GGUF files, versions 2 and 3, little-endian: read by memory map, written with version 3.

Bytes, in order. Numbers are little-endian; a string is its length in bytes (u64), then UTF-8.

  1. magic "GGUF" (4 bytes)
  2. version (u32)
  3. n_tensors (u64)
  4. n_kv (u64)
  5. n_kv metadata pairs:
     1. key (string, 1 to 65535 bytes, each key once)
     2. type of the value (u32): 0 u8, 1 i8, 2 u16, 3 i16, 4 u32, 5 i32, 6 f32, 7 bool (one byte, 0 or 1),
        8 string, 9 array, 10 u64, 11 i64, 12 f64
     3. the value; an array is the type of its elements (u32), their number (u64), then the elements
  6. n_tensors tensor records:
     1. name (string, each name once)
     2. n_dims (u32, at most 4)
     3. the dimensions (u64 each), fastest-varying first: a row-major shape reversed
     4. type (u32), a number of types.TENSOR_TYPES
     5. offset (u64) of the data, from the start of the data section; divides by the alignment
  7. padding to the alignment: the u32 "general.alignment" (a power of two, at least 8), or else 32
  8. the data section: each tensor's bytes, padded to the alignment; the last padding may be missing

A model may be split into several such files: see split.py.
"""

from trivet.formats.common import TensorInfo, UnsupportedTensor
from trivet.formats.gguf.place import demand_place
from trivet.formats.gguf.reader import GGUFFile
from trivet.formats.gguf.split import write_split
from trivet.formats.gguf.types import Encoded
from trivet.formats.gguf.writer import TensorSource, stream_gguf, write_gguf

__all__ = [
    "Encoded",
    "GGUFFile",
    "TensorInfo",
    "TensorSource",
    "UnsupportedTensor",
    "demand_place",
    "stream_gguf",
    "write_gguf",
    "write_split",
]
