"""Turns are found in templates that rewrite what was said; where they cannot be found, that is said."""

import families
import pytest
from families import source, spelled

from trivet.errors import TemplateError
from trivet.text.template import ChatTemplate
from trivet.train.data import Renderer, Row
from trivet.train.data.turns import locate


def row(*messages):
    return Row(1, "messages", {"messages": list(messages)})


def user(text):
    return {"role": "user", "content": text}


def bot(text, **more):
    return {"role": "assistant", "content": text, **more}


def rendered(made_by, messages):
    made = Renderer(made_by).render(row(*messages))
    (example,) = made.examples
    tokenizer = made_by.tokenizer
    return spelled(tokenizer, example.ids), spelled(tokenizer, example.ids[example.trained]), made


def test_thoughts_are_trained_where_the_template_keeps_them(tmp_path):
    made_by = source(tmp_path, families.THOUGHTS, "<|im_end|>")
    said = [user("a"), bot("<think>\nhm\n</think>\n\none"), user("b"), bot("<think>\nso\n</think>\n\ntwo")]
    text, trained, made = rendered(made_by, said)
    assert trained == "one<|im_end|><think>\nso\n</think>\n\ntwo<|im_end|>"
    assert "hm" not in text
    assert made.changed == 1
    _, trained, made = rendered(made_by, [user("a"), bot("plain")])
    assert trained == "<think>\n\n</think>\n\nplain<|im_end|>"  # what the model has to write after its prompt
    assert (made.changed, made.unopened) == (0, 0)


def test_thoughts_that_the_prompt_opens(tmp_path):
    made_by = source(tmp_path, families.OPENED_THOUGHTS, "</s>")
    _, trained, made = rendered(made_by, [user("a"), bot("hm</think>one"), user("b"), bot("two")])
    assert trained == "one</s>two</s>"
    assert (made.changed, made.unopened) == (1, 2)


def test_system_words_that_move(tmp_path):
    made_by = source(tmp_path, families.SYSTEM_LAST, "</s>", "<s>")
    system = {"role": "system", "content": "Be brief."}
    text, trained, made = rendered(made_by, [system, user("a"), bot("one"), user("b"), bot("two")])
    assert text == "<s>[INST]a[/INST]one</s>[INST]b[/INST]two</s>"
    assert trained == "one</s>two</s>"
    assert made.unopened == 2  # told: the model is given the system's words, and never saw them


def test_a_reply_ends_with_the_next_header(tmp_path):
    eot = {"tokenizer.ggml.eot_token_id": families.TOKENS.index("<|user|>")}
    made_by = source(tmp_path, families.HEADERS, "<|endoftext|>", metadata=eot)
    text, trained, _ = rendered(made_by, [user("a"), bot("one"), user("b"), bot("two")])
    assert text == "<|user|>\na<|assistant|>\none<|user|>\nb<|assistant|>\ntwo<|endoftext|>"
    assert trained == "one<|user|>two<|endoftext|>"


def test_a_turn_that_nothing_ends(tmp_path):
    made_by = source(tmp_path, families.HEADERS, "<|endoftext|>")
    assert rendered(made_by, [user("a"), bot("one")])[1] == "one<|endoftext|>"
    with pytest.raises(TemplateError, match="no end token"):
        Renderer(made_by).render(row(user("a"), bot("one"), user("b"), bot("two")))


def test_a_user_s_end_token_does_not_end_the_assistant_s_turn(tmp_path):
    closes_users = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}{% if m.role == 'user' %}</s>{% endif %}\n"
        "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    )
    made_by = source(tmp_path, closes_users, "</s>")
    with pytest.raises(TemplateError, match="no end token"):
        Renderer(made_by).render(row(user("a"), bot("one"), user("b"), bot("two")))
    assert rendered(made_by, [user("a"), bot("one")])[1] == "one</s>"


def test_calls_of_tools_are_trained(tmp_path):
    made_by = source(tmp_path, families.CALLS, "<|im_end|>")
    call = {"name": "add", "arguments": {"a": 1}}
    said = [user("1+1"), bot(None, tool_calls=[call]), {"role": "tool", "content": "2"}, bot("It is 2")]
    _, trained, _ = rendered(made_by, said)
    assert trained == '<call>{"name": "add", "arguments": {"a": 1}}</call><|im_end|>It is 2<|im_end|>'
    _, trained, _ = rendered(made_by, [user("1+1"), bot("Let me", tool_calls=[call])])
    assert trained == 'Let me<call>{"name": "add", "arguments": {"a": 1}}</call><|im_end|>'


def test_a_template_that_does_not_open_turns(tmp_path):
    """The model has to write the header: it is what follows its prompt."""
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    made_by = source(tmp_path, template, "<|im_end|>")
    assert rendered(made_by, [user("a"), bot("one")])[1] == "<|im_start|>assistant\none<|im_end|>"


def test_contents_that_are_written_twice(tmp_path):
    template = "{% for m in messages %}{{ m.content * 2 }}<|im_end|>{% endfor %}"
    made_by = source(tmp_path, template, "<|im_end|>")
    _, trained, made = rendered(made_by, [user("a"), bot("one"), user("b"), bot("two")])
    assert trained == "oneone<|im_end|>twotwo<|im_end|>"
    assert made.unopened == 0


def test_a_conversation_that_the_assistant_begins(tmp_path):
    made_by = source(tmp_path, families.CHATML, "<|im_end|>")
    _, trained, _ = rendered(made_by, [bot("one"), user("a"), bot("two")])
    assert trained == "one<|im_end|>two<|im_end|>"


UNFOUND = {
    "counted and twice": "{{ messages | length }}{% for m in messages %}{{ m.content * 2 }}{% endfor %}",
    "only the last": "{{ messages[-1].content }}",
    "backwards": "{% for m in messages | reverse %}{{ m.content }}{% endfor %}",
}


@pytest.mark.parametrize("name", UNFOUND)
def test_turns_that_cannot_be_located_are_refused(name):
    template = ChatTemplate(UNFOUND[name])
    messages = [user("a"), bot("one"), user("b"), bot("two"), user("c")]
    text = template.render(messages).encode()
    with pytest.raises(TemplateError, match="message 1, the assistant's, cannot be located"):
        locate(text, messages, template.render, None)


def test_a_history_that_the_prompt_drops_is_not_trained(tmp_path):
    """The prompt is empty: the whole text begins with it, and the reply does not."""
    template = (
        "{% if add_generation_prompt %}{% else %}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>"
        "{% endfor %}{% endif %}"
    )
    made_by = source(tmp_path, template, "<|im_end|>")
    _, trained, made = rendered(made_by, [user("a"), bot("one"), user("b"), bot("two")])
    assert trained == "one<|im_end|>two<|im_end|>"
    assert made.unopened == 2
