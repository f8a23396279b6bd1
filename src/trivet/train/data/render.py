"""Rows to examples: ids, and which of them are trained.

    messages      the model's own chat template; trained are the assistant's turns, each with the one token
                  that closes it, and nothing else
    completion    BOS if the tokenizer asks for it, the prompt, then trained: the completion and EOS
    instruction   a message and its reply; as prompt and completion where the model has no template
    text          all trained, EOS too; longer than `length` it becomes windows, with nothing lost

An example of n ids makes n - 1 positions: each id is the target of the one before it. There is no padding, so
nothing that equals a padding id is lost.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trivet import arguments
from trivet.errors import InputError, ModelError, TemplateError
from trivet.text import literal
from trivet.text.template import ChatTemplate
from trivet.text.tokenizer import Tokenizer
from trivet.train.data.encode import Encoder
from trivet.train.data.rows import Row
from trivet.train.data.turns import Turn, locate

TRAIN_ON = ("assistant", "all")
# What a base model gets for an instruction: the layout that Stanford Alpaca made common.
_INSTRUCTION = "### Instruction:\n{}\n\n"
_INPUT = "### Input:\n{}\n\n"
_RESPONSE = "### Response:\n"


class Source(Protocol):
    """What a renderer needs of a model."""

    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def chat_template(self) -> ChatTemplate | None: ...
    @property
    def context(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Example:
    """Ids of one sequence, int32 [n], and which are trained, bool [n]; the first, which nothing precedes, is
    not."""

    ids: npt.NDArray[np.int32]
    trained: npt.NDArray[np.bool_]

    @property
    def length(self) -> int:
        """Positions it takes in a batch."""
        return max(len(self.ids) - 1, 0)


@dataclass
class Rendered:
    """The examples of one row, several where a text was too long for one, and what there is to tell: `cut`
    tokens did not fit; turns of the assistant that the template `changed` (took thoughts away, say), or that
    are `unopened`, not begun the way it does for a reply; `spelled`: the row spells control tokens, which
    were kept as plain text."""

    examples: list[Example] = field(default_factory=list)
    cut: int = 0
    changed: int = 0
    unopened: int = 0
    spelled: bool = False


class Renderer:
    """Makes examples for one model.

    length: most positions of an example; by default the model's context.
    train_on: "assistant": replies and completions only. "all": every token of the row.
    parse_special: text, prompt and completion may spell control tokens, as files do that were rendered by a
    template before. Messages never may."""

    def __init__(
        self,
        model: Source,
        length: int | None = None,
        *,
        train_on: str = "assistant",
        parse_special: bool = False,
    ) -> None:
        if train_on not in TRAIN_ON:
            raise InputError(f"[data] train_on {train_on!r}; wanted one of: {', '.join(TRAIN_ON)}")
        self.tokenizer = model.tokenizer
        self.template = model.chat_template
        self.length = arguments.integer(
            model.context if length is None else length, "[data] length", 1, model.context
        )
        self.train_on = train_on
        self.parse_special = parse_special
        self._encoder = Encoder(self.tokenizer)

    def render(self, row: Row) -> Rendered:
        """The examples of a row. Raises TemplateError, TokenizerError, InputError or ModelError if it has
        none, with the reason."""
        fields, out = row.fields, Rendered()
        if self.tokenizer.nfc:  # what is trained is found by its bytes, which are then those of the tokens
            fields = _normal(fields)
        if row.format == "messages":
            self._chat(fields["messages"], fields.get("tools"), out)
        elif row.format == "completion":
            self._completion(fields["prompt"], fields["completion"], out)
        elif row.format == "instruction":
            self._instruction(fields, out)
        else:
            self._text(fields["text"], row, out)
        return out

    # --- formats ---

    def _instruction(self, fields: Mapping[str, Any], out: Rendered) -> None:
        asked, given, answer = fields["instruction"], fields.get("input", ""), fields["output"]
        if self.template is None:
            prompt = _INSTRUCTION.format(asked) + (_INPUT.format(given) if given else "") + _RESPONSE
            self._completion(prompt, answer, out)
            return
        content = f"{asked}\n\n{given}" if given else asked
        messages = [{"role": "user", "content": content}, {"role": "assistant", "content": answer}]
        self._chat(messages, None, out)

    def _completion(self, prompt: str, completion: str, out: Rendered) -> None:
        if self.tokenizer.eos_id is None:
            raise ModelError("[data] the tokenizer has no EOS, so a completion could not end")
        begin = len(prompt.encode())
        made = self._encoder.encode((prompt + completion).encode(), [begin], (), self.parse_special)
        out.spelled = self._spells(prompt) or self._spells(completion)
        ids, first = self._with_bos(made.ids, bisect_left(made.ends, begin + 1))
        if ids[first:][-1:] != [self.tokenizer.eos_id]:
            ids.append(self.tokenizer.eos_id)
        self._add(ids, range(0 if self.train_on == "all" else first, len(ids)), out)

    def _text(self, text: str, row: Row, out: Rendered) -> None:
        ids = self.tokenizer.encode(text, parse_special=self.parse_special)
        out.spelled = self._spells(text)
        if row.opens:
            ids, _ = self._with_bos(ids, 0)
        eos = self.tokenizer.eos_id
        if row.closes and eos is not None and ids[-1:] != [eos]:
            ids.append(eos)
        for at in range(0, max(len(ids) - 1, 1), self.length):
            part = ids[at : at + self.length + 1]
            self._add(part, range(len(part)), out)

    def _chat(self, messages: list[dict[str, Any]], tools: list[Any] | None, out: Rendered) -> None:
        if self.template is None:
            raise ModelError("[data] the model has no chat template; use prompt and completion, or text")
        render = partial(self.template.render, tools=tools)
        text = render(messages)
        contents = literal.find(text, messages, render, self.tokenizer)
        data = text.encode("utf-8", "surrogatepass")
        if self.train_on == "all":
            ids = self._encoder.encode(data, (), contents, True).ids
            self._add(ids, range(len(ids)), out)
            return
        turns = locate(data, messages, render, contents if len(contents) == len(messages) else None)
        made = self._encoder.encode(data, [turn.start for turn in turns], contents, True)
        ids, trained = made.ids, list[int]()
        for turn in turns:
            tokens = self._tokens(turn, made.ids, made.ends)
            if tokens is None:  # no end token
                if turn is not turns[-1] or turn.limit != len(data):
                    raise TemplateError("[chat] the template closes the assistant's turn with no end token")
                ids, tokens = self._closed(turn, made.ids, made.ends)
            trained += tokens
        replies = [m.get("content") for m in messages if m["role"] == "assistant"]
        out.unopened = sum(not turn.opened for turn in turns)
        out.changed = sum(
            (said or "").strip().encode() not in data[turn.start : turn.end]
            for turn, said in zip(turns, replies, strict=True)
        )
        self._add(ids[: trained[-1] + 1] if trained else ids, trained, out)

    # --- tokens ---

    def _tokens(self, turn: Turn, ids: list[int], ends: list[int]) -> range | None:
        """The tokens of a turn up to the one that closes it; None if none does."""
        first = bisect_left(ends, turn.start + 1)
        for i in range(bisect_left(ends, turn.close + 1), len(ids)):
            if ends[i] > turn.limit:
                return None
            if ids[i] in self.tokenizer.end_ids:
                return range(first, i + 1)
        return None

    def _closed(self, turn: Turn, ids: list[int], ends: list[int]) -> tuple[list[int], range]:
        """The last turn, where the template writes no end token: EOS takes the place of what follows."""
        if self.tokenizer.eos_id is None:
            raise ModelError("[data] neither the template nor the tokenizer has a token to end a turn with")
        kept = bisect_left(ends, turn.end) + 1
        first = bisect_left(ends, turn.start + 1)
        return [*ids[:kept], self.tokenizer.eos_id], range(first, kept + 1)

    def _with_bos(self, ids: list[int], first: int) -> tuple[list[int], int]:
        bos = self.tokenizer.bos_id
        if self.tokenizer.add_bos and bos is not None and ids[:1] != [bos]:
            return [bos, *ids], first + 1
        return ids, first

    def _spells(self, text: str) -> bool:
        return not self.parse_special and literal.spells_control(text, self.tokenizer)

    def _add(self, ids: list[int], trained: list[int] | range, out: Rendered) -> None:
        """An example, cut to the length, if something of it is trained."""
        out.cut += max(len(ids) - self.length - 1, 0)
        mask = np.zeros(len(ids), np.bool_)
        mask[np.asarray(trained, np.int64)] = True
        mask[:1] = False
        mask = mask[: self.length + 1]
        if mask.any():
            out.examples.append(Example(np.array(ids[: self.length + 1], np.int32), mask))


def _normal(value: Any) -> Any:
    """Fields with all their texts in NFC."""
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, Mapping):
        return {key: _normal(item) for key, item in value.items()}
    return [_normal(item) for item in value] if isinstance(value, list) else value
