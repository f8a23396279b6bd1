#!/usr/bin/env python3
"""Damages files that the Python readers open, for so many seconds: scripts/fuzz_formats.py 60 [SEED]

Safetensors, folders with an index, split GGUF files, and the tokenizers of folders. Every damaged file must
open or give an error of trivet's; one that opens must be read to the end, and as the safetensors package
reads it; a tokenizer must encode and decode. What breaks that is left in build/fuzz-formats/, and the seed is
printed."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import safetensors

from trivet import dtypes
from trivet.blocks import quantize
from trivet.errors import TrivetError
from trivet.formats.common import MAX_JSON
from trivet.formats.gguf import GGUFFile, TensorSource, write_split
from trivet.formats.safetensors import SafetensorsFile
from trivet.formats.safetensors_save import write_safetensors, write_sharded
from trivet.text import train_bpe
from trivet.text.hf_reader import read_folder
from trivet.text.hf_tokenizer import tokenizer_files
from trivet.text.tokenizer import Tokenizer

KEPT = Path(__file__).parent.parent / "build" / "fuzz-formats"
#: what stands in the place of a number, or of a piece of text
NUMBERS = [b"-1", b"0", b"1e3", b"9" * 30, str(2**63).encode(), str(2**64 - 1).encode(), b"[]", b"{}", b'"x"']
WORDS = [
    b"F8_E4M3",
    b"F4",
    b"../x",
    b"\\u0000",
    b"\\ud800",
    b'","a":"',
    b"{" * 2000,
    b"\xff",
    b"__metadata__",
]

Open = Callable[[Path], None]


def tensors() -> dict[str, np.ndarray]:
    return {
        "a": np.arange(8, dtype=np.float32),
        "b.weight": np.ones((2, 4), np.float16),
        "c": np.zeros(3, np.uint8),
    }


def safetensors_seed(folder: Path) -> Path:
    write_safetensors(folder / "model.safetensors", tensors(), {"format": "pt", "k": "v"})
    return folder / "model.safetensors"


def sharded_seed(folder: Path) -> Path:
    write_sharded(folder, tensors(), {"format": "pt"}, 20)
    return folder


def split_seed(folder: Path) -> Path:
    packed = TensorSource(dtypes.q8_0, (2, 32), quantize(np.ones((2, 32), np.float32), dtypes.q8_0))
    metadata = {"general.architecture": "llama", "tokens": ["a", "é"], "n": np.uint32(3)}
    some = {name: array for name, array in tensors().items() if array.dtype != np.uint8}
    return write_split(folder / "m.gguf", metadata, {**some, "q": packed}, 40)[0]


def tokenizer_seed(folder: Path) -> Path:
    metadata = train_bpe.metadata([(b"h", b"e"), (b"l", b"l"), (b"he", b"ll")])
    for name, text in tokenizer_files({**metadata, "tokenizer.chat_template": "{{ x }}"}).items():
        (folder / name).write_text(text, "utf-8")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2, 3, 4]}), "utf-8")
    return folder


def sentencepiece_seed(folder: Path) -> Path:
    texts = [
        "<unk>",
        "<s>",
        "</s>",
        "\u2581",
        "h",
        "e",
        "he",
        "\u2581he",
        *(f"<0x{b:02X}>" for b in range(256)),
    ]
    kinds = [2, 3, 3, *[1] * 5, *[6] * 256]
    data = b""
    for i, (text, kind) in enumerate(zip(texts, kinds, strict=True)):
        piece = b"\x0a" + bytes([len(text.encode())]) + text.encode() + b"\x15" + struct.pack("<f", -i)
        piece += b"\x18" + bytes([kind])
        data += b"\x0a" + bytes([len(piece)]) + piece
    (folder / "tokenizer.model").write_bytes(data + b"\x12\x02\x18\x02" + b"\x1a\x02\x20\x00")
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}), "utf-8")
    return folder


def open_tokenizer(path: Path) -> None:
    tokenizer = Tokenizer.of(read_folder(path, 300))
    tokenizer.decode(
        tokenizer.encode("hello  \u00e9\U0001f999 1234\n<s>", add_special=True, parse_special=True)
    )


def open_safetensors(path: Path) -> None:
    file = SafetensorsFile.open(path)
    for name in file.tensors:
        assert file.array(name).shape == file.tensors[name].shape
    if path.is_file():
        theirs = {name: bytes(t["data"]) for name, t in safetensors.deserialize(path.read_bytes())}
        assert theirs.keys() == file.tensors.keys() | file.unsupported.keys()
        assert all(file.data(name).tobytes() == theirs[name] for name in file.tensors)


def open_gguf(path: Path) -> None:
    file = GGUFFile.open(path)
    assert dict(file.metadata) is not None
    for name in file.tensors:
        assert file.array(name).shape == file.tensors[name].shape


TARGETS: list[tuple[Callable[[Path], Path], Open]] = [
    (safetensors_seed, open_safetensors),
    (sharded_seed, open_safetensors),
    (split_seed, open_gguf),
    (tokenizer_seed, open_tokenizer),
    (sentencepiece_seed, open_tokenizer),
]


def damaged(data: bytes, random: random.Random) -> bytes:
    """A few random changes; the first bytes, where the numbers are, are changed most."""
    out = bytearray(data)
    for _ in range(random.randint(1, 3)):
        at = min(int(len(out) * random.random() ** 2), max(len(out) - 1, 0))
        kind = random.randrange(6)
        if kind == 0 and out:
            out[at] ^= 1 << random.randrange(8)
        elif kind == 1:
            out[at : at + random.randint(1, 8)] = random.randbytes(random.randint(0, 8))
        elif kind == 2:
            del out[at : at + random.randint(1, 40)]
        elif kind == 3:
            out[at:at] = out[at : at + random.randint(1, 200)]
        elif kind == 4:
            out[at : at + random.randint(0, 4)] = random.choice(NUMBERS + WORDS)
        else:
            out[at : at + 8] = random.choice([2**63, 2**64 - 1, MAX_JSON, len(out), 0]).to_bytes(8, "little")
    return bytes(out)


def damaged_json(data: bytes, random: random.Random) -> bytes:
    """The same to the header alone, with its length made to fit: so that more of it is read."""
    size = int.from_bytes(data[:8], "little")
    header = damaged(data[8 : 8 + size], random)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


class Target:
    """A model's files as they should be, and how they are opened."""

    def __init__(self, make: Callable[[Path], Path], read: Open) -> None:
        with tempfile.TemporaryDirectory() as name:
            path = make(Path(name))
            self.files = {file.name: file.read_bytes() for file in Path(name).iterdir()}
        self.opened = "" if path == Path(name) else path.name
        self.name, self.read = make.__name__.removesuffix("_seed"), read

    def once(self, folder: Path, random: random.Random) -> bool:
        """Whether a damaged model opened. Raises what must not be raised, with the files kept."""
        chosen = random.choice(sorted(self.files))
        header = chosen.endswith(".safetensors") and random.random() < 0.7
        changed = (damaged_json if header else damaged)(self.files[chosen], random)
        for name, data in (self.files | {chosen: changed}).items():
            (folder / name).write_bytes(data)
        try:
            with contextlib.suppress(TrivetError):
                self.read(folder / self.opened)
                return True
            return False
        except BaseException:
            shutil.copytree(folder, KEPT, dirs_exist_ok=True)
            raise


def run(seconds: float, seed: int) -> dict[str, tuple[int, int]]:
    """How many files of each kind were tried, and how many opened."""
    chance, done = random.Random(seed), {}
    targets = [Target(make, read) for make, read in TARGETS]
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as name:
        for target in targets:
            (Path(name) / target.name).mkdir()
        while time.monotonic() < end:
            for target in targets:
                tried, opened = done.get(target.name, (0, 0))
                done[target.name] = (tried + 1, opened + target.once(Path(name) / target.name, chance))
    return done


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns() % 2**32
    print(f"fuzz_formats: seed {seed}", flush=True)
    for name, (tried, opened) in run(seconds, seed).items():
        print(f"fuzz_formats: {name}: {tried} tried, {opened} opened")


if __name__ == "__main__":
    main()
