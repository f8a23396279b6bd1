"""tokenizer.json as GGUF metadata; see hf_reader. What is known, by its exact structure:

model           BPE over bytes; BPE or Unigram over characters, with U+2581 for spaces
normalizer      none or NFC; over characters, Prepend and Replace that spell spaces
pre_tokenizer   the chains of families.py; over characters, Metaspace or none
post_processor  TemplateProcessing that adds at most one token before and one after; ByteLevel
decoder         the one that undoes these
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from trivet.errors import UnsupportedError
from trivet.text import families
from trivet.text.hf_added import add_tokens
from trivet.text.train_bpe import spelled
from trivet.text.vocabulary import BYTE, NORMAL, UNKNOWN, Vocabulary

SPACE = "\u2581"
PREPEND = {"type": "Prepend", "prepend": SPACE}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
#: cuts at spaces, of which the normaliser has left none
NO_SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
FUSED = [
    {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
BYTE_TOKENS = [f"<0x{b:02X}>" for b in range(256)]
PREPEND_SCHEME = "trivet.tokenizer.prepend_scheme"
_FILE = "tokenizer.json"
_MOST_SCORE = float(np.finfo(np.float32).max)


def from_json(whole: Mapping[str, Any], n_vocab: int) -> dict[str, Any]:
    """Metadata of the object in tokenizer.json. TokenizerError or UnsupportedError name the field."""
    vocabulary = Vocabulary(n_vocab, _FILE)
    model = whole.get("model")
    if not isinstance(model, dict):
        raise vocabulary.wrong("model", f"is {_shown(model)}; wanted an object")
    kind = model.get("type", "BPE" if "merges" in model else None)
    chain = families.chain_of(whole.get("pre_tokenizer"))
    if kind == "BPE" and chain is not None:
        found = _byte_level(whole, model, chain, vocabulary)
    elif kind == "BPE":
        found = _ranked(model, vocabulary) | _spaces(whole, vocabulary)
    elif kind == "Unigram":
        found = _unigram(model, vocabulary) | _spaces(whole, vocabulary)
    else:
        raise UnsupportedError(f"[tokenizer] {_FILE}: model.type is {_shown(kind)}; known: BPE, Unigram")
    found |= add_tokens(whole, vocabulary)
    if found["tokenizer.ggml.model"] != "gpt2":
        found |= _fallback(model, found, vocabulary)
    return found | _around(whole.get("post_processor"), vocabulary) | vocabulary.metadata()


def _shown(value: Any) -> str:
    """A part of the file, for a message."""
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= 300 else shown[:297] + "..."


def _refused(field: str, value: Any) -> UnsupportedError:
    return UnsupportedError(f"[tokenizer] {_FILE}: {field} is not one that trivet knows: {_shown(value)}")


def _flat(value: Any, inside: str) -> list[Any]:
    """The steps of a Sequence, a single step, or none."""
    if value is None:
        return []
    steps = value.get(inside) if isinstance(value, dict) and value.get("type") == "Sequence" else [value]
    return steps if isinstance(steps, list) else [value]


# --- BPE over bytes ---------------------------------------------------------------------------------------


def _byte_level(
    whole: Mapping[str, Any], model: Mapping[str, Any], chain: families.Chain, vocabulary: Vocabulary
) -> dict[str, Any]:
    normalizer = _flat(whole.get("normalizer"), "normalizers")
    if normalizer not in ([], [{"type": "NFC"}]):
        raise _refused("normalizer", whole.get("normalizer"))
    whole_pieces = model.get("ignore_merges", False) is True
    said = families.metadata(families.Family(chain, whole_pieces, nfc=bool(normalizer)))
    if said is None:
        raise _refused("pre_tokenizer", whole.get("pre_tokenizer"))
    decoder = whole.get("decoder")
    if not isinstance(decoder, dict) or decoder.get("type") != "ByteLevel":
        raise _refused("decoder", decoder)
    _plain(model)
    _read_vocab(model, vocabulary)
    every = all(spelled(bytes([b])) in vocabulary.ids for b in range(256))
    if (model.get("unk_token") is not None or model.get("byte_fallback")) and not every:
        raise _refused("model with an unknown token and without all bytes", model.get("unk_token"))
    return {"tokenizer.ggml.model": "gpt2", **said, **_listed(_read_merges(model, vocabulary))}


def _plain(model: Mapping[str, Any]) -> None:
    """Refuses what BPE models can have beside a vocabulary and merges."""
    for field in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(field):
            raise _refused(f"model.{field}", model[field])


def _read_vocab(model: Mapping[str, Any], vocabulary: Vocabulary) -> None:
    listed = model.get("vocab")
    if not isinstance(listed, dict):
        raise vocabulary.wrong("model.vocab", f"is {_shown(listed)}; wanted an object")
    for token, id in listed.items():
        vocabulary.add(token, id, NORMAL, "model.vocab")


def _read_merges(model: Mapping[str, Any], vocabulary: Vocabulary) -> list[tuple[str, str]]:
    listed = model.get("merges")
    if not isinstance(listed, list):
        raise vocabulary.wrong("model.merges", f"is {_shown(listed)}; wanted a list")
    merges: dict[tuple[str, str], int] = {}
    for i, merge in enumerate(listed):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        field = f"model.merges[{i}]"
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(p, str) and p for p in pair):
            raise vocabulary.wrong(field, f"is {_shown(merge)}; wanted two tokens")
        left, right = pair
        for token in (left, right, left + right):
            if token not in vocabulary.ids or " " in token:
                raise vocabulary.wrong(
                    field, f"{_shown(merge)} names {token!r:.60}, which is no token to merge"
                )
        if merges.setdefault((left, right), i) != i:
            raise vocabulary.wrong(field, f"{_shown(merge)} is merge {merges[left, right]} already")
    return list(merges)


def _listed(merges: list[tuple[str, str]]) -> dict[str, Any]:
    listed = [f"{left} {right}" for left, right in merges]
    return {"tokenizer.ggml.merges": listed or np.array([], np.str_)}  # an empty list has no type


# --- BPE and unigram over characters ----------------------------------------------------------------------


def _spaces(whole: Mapping[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    """How spaces are spelled, and where one is added."""
    normalizer = _flat(whole.get("normalizer"), "normalizers")
    before = _flat(whole.get("pre_tokenizer"), "pretokenizers")
    if normalizer == [PREPEND, REPLACE] and not before:
        said: dict[str, Any] = {"tokenizer.ggml.add_space_prefix": True}
    elif normalizer == [REPLACE] and before in ([], [NO_SPLIT]):
        said = {"tokenizer.ggml.add_space_prefix": False}
    elif not normalizer and len(before) == 1 and (scheme := _scheme(before[0], vocabulary)) is not None:
        said = {"tokenizer.ggml.add_space_prefix": scheme != "never"}
        if scheme != "never":
            said[PREPEND_SCHEME] = scheme
    elif normalizer and not before:
        raise _refused("normalizer", whole.get("normalizer"))
    else:
        raise _refused("pre_tokenizer", whole.get("pre_tokenizer"))
    prefix = said["tokenizer.ggml.add_space_prefix"]
    if _flat(whole.get("decoder"), "decoders") != [*FUSED, *([STRIP] if prefix else [])]:
        raise _refused("decoder", whole.get("decoder"))
    return said


def _scheme(step: Any, vocabulary: Vocabulary) -> str | None:
    """The prepend_scheme of a Metaspace step, which older files tell by add_prefix_space."""
    if not isinstance(step, dict) or step.get("type") != "Metaspace" or step.get("replacement") != SPACE:
        return None
    # To split before spaces changes nothing where no token goes on behind one.
    if step.get("split", True) and (
        SPACE not in vocabulary.ids or any(SPACE in t[1:] for t in vocabulary.ids)
    ):
        return None
    scheme = step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")
    return scheme if scheme in ("first", "always", "never") else None


def _ranked(model: Mapping[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    """Merges, and the scores that programs without them merge by: the earlier, the higher."""
    _plain(model)
    _read_vocab(model, vocabulary)
    merges = _read_merges(model, vocabulary)
    scores = np.zeros(vocabulary.n_vocab, np.float32)
    for rank, (left, right) in reversed(list(enumerate(merges))):
        scores[vocabulary.ids[left + right]] = -rank - 1
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.scores": scores,
        **_listed(merges),
    }


def _unigram(model: Mapping[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    listed = model.get("vocab")
    if not isinstance(listed, list) or len(listed) > vocabulary.n_vocab:
        raise vocabulary.wrong("model.vocab", f"is not a list of at most {vocabulary.n_vocab} tokens")
    scores = np.zeros(vocabulary.n_vocab, np.float32)
    for id, entry in enumerate(listed):
        field = f"model.vocab[{id}]"
        if not isinstance(entry, list) or len(entry) != 2 or isinstance(entry[1], bool | str):
            raise vocabulary.wrong(field, f"is {_shown(entry)}; wanted a token and its score")
        if not isinstance(entry[1], int | float) or not abs(entry[1]) <= _MOST_SCORE:
            raise vocabulary.wrong(field, f"has the score {entry[1]!r:.50}; wanted a number of float32")
        vocabulary.add(entry[0], id, NORMAL, field)
        scores[id] = entry[1]
        if float(scores[id]) != entry[1]:
            raise _refused(f"{field}, whose score float32 cannot hold,", entry)
    return {"tokenizer.ggml.model": "t5", "tokenizer.ggml.pre": "default", "tokenizer.ggml.scores": scores}


def _fallback(model: Mapping[str, Any], found: Mapping[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    """What becomes of characters that are no tokens: their bytes, else the unknown token."""
    present = [vocabulary.ids[t] for t in BYTE_TOKENS if t in vocabulary.ids]
    if model.get("byte_fallback"):
        vocabulary.kinds.update(dict.fromkeys(present, BYTE))
    elif present:
        raise _refused("model with byte tokens and no byte_fallback", vocabulary.tokens[present[0]])
    unigram = found["tokenizer.ggml.model"] == "t5"
    unknown = model.get("unk_id" if unigram else "unk_token")
    if unknown is None:
        if len(present) < 256:
            raise _refused("model that drops unknown characters", unknown)
        return {}
    if not unigram and not model.get("fuse_unk") and len(present) < 256:
        raise _refused("model.fuse_unk", model.get("fuse_unk"))
    if unigram and (type(unknown) is not int or unknown not in vocabulary.tokens):
        raise vocabulary.wrong("model.unk_id", f"is {_shown(unknown)}, which is no id")
    id = unknown if unigram else vocabulary.find(unknown, "model.unk_token")
    vocabulary.kinds[id] = UNKNOWN
    return {"tokenizer.ggml.unknown_token_id": np.uint32(id)}


# --- what is added before and after -----------------------------------------------------------------------


def _around(processor: Any, vocabulary: Vocabulary) -> dict[str, Any]:
    """BOS and EOS as the post-processor adds them."""
    every = _flat(processor, "processors")
    steps = [s for s in every if not isinstance(s, dict) or s.get("type") != "ByteLevel"]
    said: dict[str, Any] = {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": False}
    if not steps:
        return said
    step = steps[0] if isinstance(steps[0], dict) else {}
    single = step.get("single")
    if len(steps) > 1 or step.get("type") != "TemplateProcessing" or not isinstance(single, list):
        raise _refused("post_processor", processor)
    texts = [i for i, piece in enumerate(single) if isinstance(piece, dict) and "Sequence" in piece]
    if len(texts) != 1 or texts[0] > 1 or len(single) - texts[0] > 2:
        raise _refused("post_processor", processor)
    for name, piece in (("bos", single[: texts[0]]), ("eos", single[texts[0] + 1 :])):
        if piece:
            said[f"tokenizer.ggml.add_{name}_token"] = True
            said[f"tokenizer.ggml.{name}_token_id"] = np.uint32(_special(piece[0], step, vocabulary))
    return said


def _special(piece: Any, template: Mapping[str, Any], vocabulary: Vocabulary) -> int:
    """The id of a template's special token."""
    field = "post_processor.special_tokens"
    try:
        (id,) = template["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
        known = type(id) is int and id in vocabulary.tokens
    except (KeyError, TypeError, ValueError):
        raise vocabulary.wrong(field, f"does not have one id for {_shown(piece)}") from None
    if not known:
        raise vocabulary.wrong(field, f"has the id {_shown(id)} for {_shown(piece)}; the vocabulary has not")
    found: int = id
    return found
