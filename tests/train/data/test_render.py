"""What is trained of a row: the assistant's words and the token that ends them, and nothing else."""

from __future__ import annotations

import pytest
from families import FAMILIES, LLAMA3, MARKERS, TOKENS, Source, sentencepiece, source, spelled
from hypothesis import given, settings
from hypothesis import strategies as st

import trivet as tv
from trivet.errors import InputError, ModelError
from trivet.train.data import Renderer, Row, pack


def chat(*contents: str, system: str | None = None) -> Row:
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages += [{"role": ("user", "assistant")[i % 2], "content": c} for i, c in enumerate(contents)]
    return Row(1, "messages", {"messages": messages})


def one(made_by: Source, row: Row, **options):
    (example,) = Renderer(made_by, **options).render(row).examples
    return example


def trained_text(made_by: Source, example) -> str:
    return spelled(made_by.tokenizer, example.ids[example.trained])


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    return {
        name: source(tmp_path_factory.mktemp(name), family.template, family.eos, family.bos)
        for name, family in FAMILIES.items()
    }


text = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\U000f5eed\U000f5eee"), max_size=12),
    st.sampled_from(
        ["", " ", "\n\nlines\n", "<|im_end|></s>", "<|eot_id|><end_of_turn>", "日本語 🦙", "</think>"]
    ),
)


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=60, deadline=None)
@given(turns=st.lists(st.tuples(text, text), min_size=1, max_size=4), system=st.none() | text)
def test_trained_is_what_the_assistant_says_and_its_end(name, sources, turns, system):
    family, made_by = FAMILIES[name], sources[name]
    row = chat(*(part for turn in turns for part in turn), system=system if family.system else None)
    example = one(made_by, row)
    assert trained_text(made_by, example) == "".join(family.reply(said) for _, said in turns)
    whole = made_by.chat_template.render(row.fields["messages"])
    assert whole.startswith(spelled(made_by.tokenizer, example.ids))  # but for what follows the last reply
    bos = made_by.tokenizer.bos_id
    assert (example.ids == bos).sum() == (bos is not None)
    ends = [TOKENS.index(t) for t in ("<|im_end|>", "<|eot_id|>", "</s>", "<end_of_turn>")]
    assert sum(int(i) in ends for i in example.ids[example.trained]) == len(turns)


@pytest.mark.parametrize("name", FAMILIES)
def test_ids_before_a_reply_are_those_the_model_is_given(name, sources):
    made_by = sources[name]
    row = chat("a\n", "\nb", "c", "d")
    example = one(made_by, row)
    given = made_by.chat_template.render(row.fields["messages"][:1], add_generation_prompt=True)
    ids = made_by.tokenizer.encode(given, parse_special=True)
    assert example.ids[: len(ids)].tolist() == ids
    assert not example.trained[: len(ids)].any()
    assert example.trained[len(ids)]


def test_all_trains_everything_but_the_first(sources):
    example = one(sources["llama3"], chat("a", "b"), train_on="all")
    assert spelled(sources["llama3"].tokenizer, example.ids).endswith("b<|eot_id|>")
    assert not example.trained[0]
    assert example.trained[1:].all()


def test_a_conversation_that_ends_with_the_user_is_cut_after_the_last_reply(sources):
    example = one(sources["chatml"], chat("a", "b", "never answered"))
    assert spelled(sources["chatml"].tokenizer, example.ids).endswith("\nb<|im_end|>")


def test_nothing_to_train_on_makes_no_example(sources):
    assert Renderer(sources["chatml"]).render(chat("a")).examples == []


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_a_truncated_turn_keeps_its_mask_up_to_the_cut(cut, sources):
    made_by = sources["chatml"]
    whole = one(made_by, chat("question", "answer"))
    made = Renderer(made_by, whole.length - cut).render(chat("question", "answer"))
    (example,) = made.examples
    assert made.cut == cut
    assert example.ids.tolist() == whole.ids[:-cut].tolist()
    assert example.trained.tolist() == whole.trained[:-cut].tolist()
    assert example.length == whole.length - cut


def test_a_cut_before_the_reply_leaves_nothing_and_says_so(sources):
    made = Renderer(sources["chatml"], 10).render(chat("question", "answer"))
    assert made.examples == []
    assert made.cut > 0


# --- prompt and completion, instruction, text ---


def test_completion(sources):
    made_by = sources["llama3"]
    example = one(made_by, Row(1, "completion", {"prompt": "Q: a\n", "completion": "\nb"}))
    assert spelled(made_by.tokenizer, example.ids) == "<s>Q: a\n\nb<|eot_id|>"
    assert trained_text(made_by, example) == "\nb<|eot_id|>"
    everything = one(made_by, Row(1, "completion", {"prompt": "a", "completion": "b"}), train_on="all")
    assert trained_text(made_by, everything) == "ab<|eot_id|>"


def test_spelled_tokens_are_text_unless_wanted(sources):
    made_by = sources["llama3"]
    row = Row(1, "completion", {"prompt": "<s>a", "completion": "b<|eot_id|>"})
    made = Renderer(made_by).render(row)
    assert made.spelled
    assert made.examples[0].ids.tolist().count(TOKENS.index("<|eot_id|>")) == 1
    wanted = one(made_by, row, parse_special=True)  # one BOS, one EOS
    assert [TOKENS[i] for i in wanted.ids] == ["<s>", "a", "b", "<|eot_id|>"]
    assert wanted.trained.tolist() == [False, False, True, True]


def test_instruction_is_a_message_or_a_prompt(sources, tmp_path):
    row = Row(1, "instruction", {"instruction": "Add.", "input": "1 2", "output": "3"})
    example = one(sources["llama3"], row)
    assert example.ids.tolist() == one(sources["llama3"], chat("Add.\n\n1 2", "3")).ids.tolist()
    base = source(tmp_path, None, "</s>")
    plain = one(base, row)
    assert trained_text(base, plain) == "3</s>"
    assert spelled(base.tokenizer, plain.ids).startswith("### Instruction:\nAdd.\n\n### Input:\n1 2\n\n")


def test_messages_without_a_template_and_completions_without_eos(tmp_path):
    base = source(tmp_path, None, None)
    with pytest.raises(ModelError, match="no chat template"):
        Renderer(base).render(chat("a", "b"))
    with pytest.raises(ModelError, match="no EOS"):
        Renderer(base).render(Row(1, "completion", {"prompt": "a", "completion": "b"}))


@pytest.mark.parametrize("length", [1, 3, 7, 10, 11, 12, 50])
def test_windows_of_a_text_lose_nothing(length, tmp_path):
    made_by = source(tmp_path, None, "</s>", "<s>", context=50)
    made = Renderer(made_by, length).render(Row(1, "text", {"text": "abcdefghij"}))
    whole = ["<s>", *"abcdefghij", "</s>"]
    targets = [TOKENS[t] for e in made.examples for t in pack([e]).targets]
    assert targets == whole[1:]  # each once, in order
    assert [TOKENS[i] for e in made.examples for i in pack([e]).ids] == whole[:-1]
    assert all(e.length == length for e in made.examples[:-1])
    assert made.cut == 0


def test_pieces_of_a_text_have_one_beginning_and_one_end(tmp_path):
    made_by = source(tmp_path, None, "</s>", "<s>")
    first = one(made_by, Row(1, "text", {"text": "ab"}, closes=False))
    last = one(made_by, Row(2, "text", {"text": "cd"}, opens=False))
    assert spelled(made_by.tokenizer, first.ids) == "<s>ab"
    assert spelled(made_by.tokenizer, last.ids) == "cd</s>"


def test_a_padding_token_that_is_eos_is_learned_all_the_same(tmp_path):
    eos = TOKENS.index("</s>")
    made_by = source(tmp_path, None, "</s>", metadata={"tokenizer.ggml.padding_token_id": eos})
    assert made_by.tokenizer.pad_id == made_by.tokenizer.eos_id
    row = Row(1, "completion", {"prompt": "a", "completion": "b"})
    batch = pack([one(made_by, row)] * 3)
    assert batch.targets.tolist().count(eos) == 3  # once an example, and nothing after it
    assert eos not in batch.ids


@pytest.mark.parametrize(
    "options", [{"train_on": "user"}, {"length": 0}, {"length": 100_001}, {"length": 1.5}]
)
def test_wrong_options(options, sources):
    with pytest.raises(InputError, match=next(iter(options))):
        Renderer(sources["chatml"], **options)


# --- tokenizers that put a space before a text ---


@pytest.mark.parametrize("said", ["hello", " hello", "", "bye é🦙"])
def test_sentencepiece(said, tmp_path):
    made_by = sentencepiece(tmp_path, FAMILIES["mistral"].template)
    example = one(made_by, chat("hi", said, "hello", "bye"))
    given = made_by.chat_template.render([{"role": "user", "content": "hi"}])
    assert made_by.tokenizer.decode(example.ids) == f"{given} {said}</s>[INST] hello [/INST] bye</s>"
    assert trained_text(made_by, example) == f" {said}</s> bye</s>"
    assert example.ids.tolist() == made_by.tokenizer.encode(
        made_by.chat_template.render(chat("hi", said, "hello", "bye").fields["messages"]), parse_special=True
    )


def test_sentencepiece_token_over_the_border_belongs_to_the_reply(tmp_path):
    made_by = sentencepiece(tmp_path, None)
    example = one(made_by, Row(1, "completion", {"prompt": "hello ", "completion": "bye"}))
    assert trained_text(made_by, example) == " bye</s>"
    assert example.ids[0] == made_by.tokenizer.bos_id


# --- beside other programs ---


@pytest.mark.model
def test_smollm2(smollm2_path):
    model = tv.load(smollm2_path, "cpu")
    row = chat("Hi", "Hello 🦙 there<|im_end|>", "日本?", "\nfine ")
    example = one(model, row, length=200)
    assert trained_text(model, example) == "Hello 🦙 there<|im_end|><|im_end|>\nfine <|im_end|>"
    ends = [i for i, t in enumerate(example.ids) if t == model.tokenizer.eos_id and example.trained[i]]
    assert len(ends) == 2
    messages = row.fields["messages"]
    for until in (1, 3):
        ids = model.encode_chat(messages[:until])
        assert example.ids[: len(ids)].tolist() == ids
        assert example.trained[len(ids)]
        assert not example.trained[len(ids) - 1]


@pytest.mark.parametrize("name", ["chatml", "llama3"])
def test_masks_are_those_of_transformers(name, sources):
    """Which wants the assistant's words marked in the template; we find them without."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    family, made_by = FAMILIES[name], sources[name]
    vocab = {t: i for i, t in enumerate(TOKENS)}
    theirs = Tokenizer(models.BPE(vocab, [("Ċ", "Ċ")]))
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.decoder = decoders.ByteLevel()
    theirs.add_special_tokens([AddedToken(t, normalized=False) for t in MARKERS])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=theirs, bos_token="<s>", eos_token=family.eos
    )
    said = "{{ m.content | trim }}<|eot_id|>" if family.template is LLAMA3 else "{{ m.content }}<|im_end|>"
    theirs_only = "{% generation %}" + said + "{% endgeneration %}"
    either = "{% if m.role == 'assistant' %}" + theirs_only + "{% else %}" + said + "{% endif +%}"
    marked = family.template.replace(said, either)
    for contents in (("Hi", "Hello"), ("a", "b c", "d", "ef\ng"), ("é", "日本 🦙", "x", "")):
        row = chat(*contents)
        want = fast.apply_chat_template(
            row.fields["messages"], chat_template=marked, return_dict=True, return_assistant_tokens_mask=True
        )
        example = one(made_by, row)
        ids = [id for id, mask in zip(want["input_ids"], want["assistant_masks"], strict=True) if mask]
        assert example.ids[example.trained].tolist() == ids
        assert fast.decode(want["input_ids"]).startswith(spelled(made_by.tokenizer, example.ids))


def test_a_tokenizer_that_normalises(tmp_path) -> None:
    family = FAMILIES["chatml"] if "chatml" in FAMILIES else next(iter(FAMILIES.values()))
    made_by = source(
        tmp_path, family.template, family.eos, family.bos, metadata={"tokenizer.ggml.pre": "qwen2"}
    )
    assert made_by.tokenizer.nfc
    composed, apart = ("caf\u00e9 \ud55c", "cafe\u0301 \u1112\u1161\u11ab")
    for row in (lambda t: chat("?", t), lambda t: Row(1, "completion", {"prompt": t, "completion": t})):
        one_way, other = one(made_by, row(composed)), one(made_by, row(apart))
        assert list(one_way.ids) == list(other.ids)
        assert trained_text(made_by, other).startswith(composed)
