"""One engine in a process of its own, so that no engine's waiting threads disturb another's.

Reads tasks from standard input, a line each, "prefill TOKENS" or "decode TOKENS DEPTH", and answers with the
seconds it took.

    python benchmarks/engines.py trivet|llama.cpp FILE THREADS [f16|q8_0]

The last is what keys and values are kept in: f16, which both take by default.
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from common import Worker

CONTEXT = 2048
VOCAB = 49152


def ids(count: int) -> list[int]:
    return [(7919 * i + 13) % VOCAB for i in range(count)]


class Trivet:
    def __init__(self, path: str, threads: int, kv: str) -> None:
        from trivet.generate.model import load

        self.model = load(path, "cpu", context=CONTEXT, threads=threads, kv=kv)

    def clear(self) -> None:
        self.session = self.model.session()

    def feed(self, tokens: list[int]) -> None:
        """Feeds tokens and has the last one's logits."""
        self.model.engine.forward(self.session, tokens, [len(tokens) - 1])


class LlamaCpp:
    """Through its C interface, with flash attention, which is its faster way on a CPU."""

    def __init__(self, path: str, threads: int, kv: str) -> None:
        import llama_cpp

        self.api: Any = llama_cpp
        silent = llama_cpp.llama_log_callback(lambda *_: None)
        self.kept = silent
        llama_cpp.llama_log_set(silent, None)
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = CONTEXT, 512, 512
        options.n_threads = options.n_threads_batch = threads
        options.type_k = options.type_v = {"f16": 1, "q8_0": 8}[kv]
        options.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        self.context = llama_cpp.llama_init_from_model(model, options)

    def clear(self) -> None:
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)

    def feed(self, tokens: list[int]) -> None:
        for at in range(0, len(tokens), 512):
            part = tokens[at : at + 512]
            held = (ctypes.c_int32 * len(part))(*part)
            batch = self.api.llama_batch_get_one(held, len(part))
            if self.api.llama_decode(self.context, batch) != 0:
                raise SystemExit("llama_decode failed")
        self.api.llama_get_logits(self.context)  # waits for them


ENGINES = {"trivet": Trivet, "llama.cpp": LlamaCpp}


def seconds(engine: Any, task: str) -> float:
    kind, *numbers = task.split()
    tokens, depth = (*map(int, numbers), 0)[:2]
    engine.clear()
    if kind == "decode":
        engine.feed(ids(depth + 1))
    work = [[token] for token in ids(tokens)] if kind == "decode" else [ids(tokens)]
    began = time.perf_counter()
    for part in work:
        engine.feed(part)
    return time.perf_counter() - began


def spawn(engine: str, path: Path, threads: int) -> Worker:
    """The other side: an engine's process, to give tasks to."""
    from common import Worker  # here: an engine's own process, whose memory is measured, needs none of it

    return Worker(__file__, engine, str(path), str(threads))


if __name__ == "__main__":
    name, path, threads, kv = (*sys.argv[1:], "f16")[:4]
    opened = ENGINES[name](path, int(threads), kv)
    for task in sys.stdin:
        print(seconds(opened, task.strip()), flush=True)
