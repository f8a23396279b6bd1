"""`Model`: a checkpoint opened for use on one device. What `trivet.load` gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trivet import arguments, models, runtime
from trivet.errors import CapacityError, InputError, ModelError, NonFiniteError
from trivet.generate.completion import Chunk, Completion
from trivet.generate.embedding import Embedder, pooling_of
from trivet.generate.engine import (
    Engine,
    GraphEngine,
    Logits,
    Session,
    check_ids,
    kv_dtype,
)
from trivet.generate.reply import Reply
from trivet.generate.sampler import SamplerOptions
from trivet.models.checkpoint import Checkpoint, open_checkpoint, resolve
from trivet.text import literal
from trivet.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from trivet.adapter import Adapter, Adapters
    from trivet.generate.native import NativeWeights
    from trivet.text.template import ChatTemplate, Message

MAX_THREADS = 256  # as the core has it
NLL_CHUNK = 256  # rows of logits held at a time while scoring a text

Prompt = str | Sequence[int]


def load(
    model: str | Path,
    device: str = "auto",
    *,
    context: int | None = None,
    threads: int = 0,
    kv: str | None = None,
    adapter: Adapters | None = None,
    mesh: str = "",
) -> Model:
    """Opens a model for use.

    model: path of a GGUF file (of a split one, its first part) or of a Hugging Face folder, the name
        OWNER/REPO[:QUANT] of what was pulled from a hub, or a short name such as "smollm2-135m".
    device: "cpu", "cuda", "rocm", "tpu", "metal", "reference" (NumPy in float64: slow, exact), or "auto": the
        one of `with tv.device(...)`, else the first that can be used; `trivet devices` tells.
    context: most tokens of one sequence; by default what the model was trained for.
    threads: 0 for TRIVET_THREADS, else the physical cores; no more run than there are processors.
    kv: what keys and values are kept in: "f32", "f16", "bf16" or "q8_0" (half of f16's memory, for heads
        whose size divides by 32); by default f16, f32 on the reference.
    adapter: LoRA to use with it: a PEFT or MLX folder, a GGUF adapter file, an `Adapter`, or (one of these,
        its scale); or a list of them, which are summed.
    mesh: several of the device's chips: "data:4,model:2" divides tokens four ways, and matrices two ways.
    The file is mapped: replace it by renaming. One that was cut short since gives FileError when the model is
    used, and, if it is cut short just then, ends the process.
    Raises FileError, GGUFError, ModelError, DeviceUnavailable, or UnsupportedError where there is no mesh."""
    device = runtime.resolve(device)  # a wrong name is reported before a file is opened
    runtime.backend(device, mesh)
    checkpoint = open_checkpoint(resolve(model))
    return Model(checkpoint, device, context=context, threads=threads, kv=kv, adapter=adapter, mesh=mesh)


def open_tokenizer(model: str | Path) -> Tokenizer:
    """The tokenizer of a model's file or folder alone, without loading the model."""
    path = resolve(model)
    return open_checkpoint(path).tokenizer if path.is_dir() else Tokenizer.open(path)


class Model:
    """A language model on one device."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: str = "auto",
        *,
        context: int | None = None,
        threads: int = 0,
        kv: str | None = None,
        adapter: Adapters | None = None,
        mesh: str = "",
    ) -> None:
        self.checkpoint = checkpoint
        self.definition = models.build(checkpoint, context)
        self.config = self.definition.config
        self.context = self.config.context
        self.device = runtime.resolve(device)
        self.backend = runtime.backend(self.device, mesh)
        self.threads = arguments.integer(threads, "[load] threads", 0, MAX_THREADS)
        default = "f32" if self.device == "reference" else "f16"
        self.kv = kv_dtype(default if kv is None else kv, self.config.head_dim)
        self.adapters: tuple[tuple[Adapter, float], ...] = ()
        if adapter is not None:
            self.adapt(adapter)

    def adapt(self, adapter: Adapters | None) -> None:
        """Puts other adapters, given as to `load`, or none, in place of those in use, which `adapters` lists;
        the base stays as it is. Sessions belong to what they were made with: make new ones. What a model was
        once given stays in memory, so that going back costs little."""
        from trivet.adapter import gathered

        self.adapters = gathered(adapter, self.checkpoint)
        for made in ("engine", "_embedder"):
            self.__dict__.pop(made, None)

    @cached_property
    def engine(self) -> Engine:
        """What runs the model; made when first used."""
        adapters = None
        if self.adapters:
            from trivet.generate.adapted import adapted

            adapters = adapted(self.adapters)
        if self.backend.name == "native":
            from trivet.generate.native import NativeEngine

            return NativeEngine(self.definition, self._weights, self.context, self.threads, self.kv, adapters)
        return GraphEngine(self.definition, self.checkpoint, self.backend, self.context, self.kv, adapters)

    @cached_property
    def _weights(self) -> NativeWeights:
        from trivet.generate.native import NativeWeights

        return NativeWeights(self.checkpoint)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model's file or folder."""
        return self.checkpoint.tokenizer

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The file's chat template, or None."""
        source = self.checkpoint.chat_template
        if source is None:
            return None
        from trivet.text.template import ChatTemplate  # Jinja: only conversations need it

        return ChatTemplate(source, self.tokenizer.bos_token, self.tokenizer.eos_token)

    def session(self) -> Session:
        """A new, empty sequence."""
        return self.engine.session()

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a conversation with the assistant's turn opened, by the file's chat template. Control tokens
        that a message spells stay plain text.

        Raises ModelError if the file has none, TemplateError if it fails, or if it changes the content of a
        message that spells a control token, so that the two cannot be told apart."""
        if self.chat_template is None:
            raise ModelError(
                f"[chat] {self.checkpoint.path.name} has no chat template: a base model completes text"
            )
        if not isinstance(messages, Sequence) or not all(isinstance(m, Mapping) for m in messages):
            raise InputError("[chat] messages are not a list of dicts with a role and a content")
        render = partial(self.chat_template.render, add_generation_prompt=True)
        text = render(messages)
        contents = literal.find(text, messages, render, self.tokenizer)
        return self.tokenizer.encode(text, parse_special=True, literal=contents)

    def encode_prompt(self, prompt: Prompt, call: str = "generate") -> list[int]:
        """Ids of a prompt: text is encoded with the special tokens the file asks for, and those it spells."""
        ids = (
            self.tokenizer.encode(prompt, add_special=True, parse_special=True)
            if isinstance(prompt, str)
            else arguments.integers(prompt, f"[{call}] the prompt")
        )
        if not ids:
            raise InputError(f"[{call}] the prompt is empty")
        check_ids(ids, self.config.vocab)
        return ids

    def logits(self, ids: Sequence[int]) -> Logits:
        """Logits after each of `ids`, in a fresh sequence: float32 [len(ids), vocab].

        Raises InputError for an id outside the vocabulary, CapacityError beyond the context, NonFiniteError
        if the weights make infinity or NaN."""
        ids = arguments.integers(ids, "[logits] ids")
        if not ids:
            return np.zeros((0, self.config.vocab), np.float32)
        return _finite(self.engine.forward(self.session(), ids, range(len(ids))))

    def embed(
        self, texts: Prompt | Sequence[Prompt], *, pooling: str | None = None, normalize: bool = False
    ) -> npt.NDArray[np.float32]:
        """Embeddings of texts (or ids): what the last norm gives for each token, pooled: float32 [N, width].

        pooling: "mean" of a text's tokens, or the "last" one; by default what the file says, else "mean".
        normalize: divides each by its Euclidean length.
        A text is encoded as a prompt is; one that is not in a list gives one row. Raises InputError for an
        empty text, CapacityError for one beyond the context, NonFiniteError if the weights make infinity or
        NaN."""
        kind = pooling_of(self.checkpoint, pooling)
        if not isinstance(normalize, bool):
            raise InputError(f"[embed] normalize is {normalize!r}; wanted True or False")
        encoded = [self.encode_prompt(text, "embed") for text in _listed(texts)]
        longest = max(map(len, encoded), default=0)
        if longest > self.context:
            raise CapacityError(f"[embed] a text of {longest} tokens; the context is {self.context}")
        rows = [self._embedder.text(ids, kind, normalize) for ids in encoded]
        return np.stack(rows) if rows else np.zeros((0, self.config.width), np.float32)

    @cached_property
    def _embedder(self) -> Embedder:
        from trivet.generate.adapted import adapted

        added = adapted(self.adapters)
        return Embedder(self.definition, self.checkpoint, self.backend, self.threads, added)

    def nll(
        self,
        ids: Sequence[int],
        *,
        window: int = 0,
        stride: int = 0,
        advance: Callable[[int], None] = lambda _: None,
    ) -> npt.NDArray[np.float64]:
        """Negative log likelihood, natural log, of each id after the first: float64 [len(ids) - 1].

        One window by default. With `window` and `stride` (1 <= stride < window), windows of `window` tokens
        begin every `stride`, and each token is scored once, in the first window that reaches it. `advance` is
        told how many more are scored."""
        ids = arguments.integers(ids, "[nll] ids")
        check_ids(ids, self.config.vocab)
        window = arguments.integer(window, "[nll] window", 0) or max(len(ids), 2)
        if window == 1:
            raise InputError(
                "[nll] window is 1; a window scores the tokens after its first: wanted 2 or more"
            )
        stride = arguments.integer(stride, "[nll] stride", 0) or window - 1
        if stride >= window:
            raise InputError(f"[nll] stride {stride}; wanted 1 <= stride < window {window}")
        out = np.empty(max(len(ids) - 1, 0))
        scored = 0
        for start in range(0, max(len(ids) - 1, 0), stride):
            end = min(start + window, len(ids))
            for first, values in self._score(ids[start:end], scored - start):
                out[start + first : start + first + len(values)] = values
                advance(len(values))
            scored = end - 1
            if end == len(ids):
                break
        return out

    def _score(self, ids: list[int], first: int) -> Iterator[tuple[int, npt.NDArray[np.float64]]]:
        """(index, NLL of ids[index + 1] and on) from `first`, a chunk of rows at a time."""
        session = self.session()
        for at in range(0, len(ids) - 1, NLL_CHUNK):
            part = ids[at : min(at + NLL_CHUNK, len(ids) - 1)]
            rows = range(max(first - at, 0), len(part))
            logits = _finite(self.engine.forward(session, part, rows))
            if len(rows):
                begin = at + rows[0]
                targets = ids[begin + 1 : begin + 1 + len(rows)]
                yield begin, np.array([_nll(row, id) for row, id in zip(logits, targets, strict=True)])

    def generate(
        self,
        prompt: Prompt,
        max_tokens: int = 64,
        temperature: float = 0.2,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        repeat_penalty: float = 1.0,
        presence_penalty: float = 0,
        frequency_penalty: float = 0,
        logit_bias: Mapping[int, float] | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
    ) -> Completion:
        """Continues a prompt (text, or ids).

        temperature 0 takes the likeliest token each time. seed None draws a new one. Generation ends at an
        end-of-text token or a stop string ("stop"; neither is part of the text), or at `max_tokens` or the
        end of the context ("length"). Raises InputError for a bad option, CapacityError if the prompt does
        not leave room for one token."""
        options = SamplerOptions(
            temperature,
            top_k,
            top_p,
            min_p,
            repeat_penalty,
            presence_penalty,
            frequency_penalty,
            logit_bias,
            seed,
        )
        last: Completion | None = None
        for chunk in self.stream_ids(self.encode_prompt(prompt), options, max_tokens, stop):
            last = chunk.completion or last
        assert last is not None
        return last

    def stream(
        self, prompt: Prompt, max_tokens: int = 64, *, stop: str | Sequence[str] = (), **options: Any
    ) -> Iterator[Chunk]:
        """The same, as an iterator of chunks; the last one carries the completion. `options` are those of
        `generate`."""
        return self.stream_ids(self.encode_prompt(prompt), SamplerOptions(**options), max_tokens, stop)

    def stream_ids(
        self,
        ids: list[int],
        options: SamplerOptions,
        max_tokens: int,
        stop: str | Sequence[str] = (),
        session: Session | None = None,
    ) -> Iterator[Chunk]:
        """Feeds ids to a session (a new one by default) and streams the reply; the session keeps both."""
        max_tokens = arguments.integer(max_tokens, "[generate] max_tokens", 1)
        stops = arguments.texts(stop, "[generate] stop")
        session = session or self.session()
        if session.length + len(ids) >= self.context:
            raise CapacityError(
                f"[generate] a prompt of {session.length + len(ids)} tokens leaves no room"
                f" in a context of {self.context}"
            )
        return Reply(self, session, ids, options, max_tokens, stops).chunks()


def _nll(logits: Logits, id: int) -> float:
    """Of one id, given a row of logits: a row at a time stays in the processor's cache."""
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wanted = float(wide[id])
    return float(np.log(np.exp(wide, out=wide).sum())) - wanted


def _listed(texts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Texts as a list of them."""
    if isinstance(texts, str):
        return [texts]
    if not isinstance(texts, Sequence | np.ndarray):
        raise InputError(f"[embed] texts are {texts!r:.50}; wanted a text, or a list of texts")
    one = len(texts) > 0 and isinstance(texts[0], int | np.integer)
    return [texts] if one else list(texts)  # type: ignore[list-item, arg-type]


def _finite(logits: Logits) -> Logits:
    """Refuses what broken weights make of numbers; the sampler does so for itself."""
    if not np.isfinite(logits).all():
        row = int(np.flatnonzero(~np.isfinite(logits).all(axis=1))[0])
        raise NonFiniteError(f"[logits] row {row} holds infinity or NaN: the model's weights are broken")
    return logits
