"""Chat templates give what transformers gives, and cannot take long, take much or reach out."""
# ruff: noqa: E501  # templates are easiest to read in one line

from __future__ import annotations

import resource
import threading
import time
from typing import Any

import chat_templates
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from trivet.errors import InputError, TemplateError
from trivet.text.template import ChatTemplate

CONTENT = st.one_of(
    st.text(max_size=20), st.sampled_from(["", " x ", "\n\n", "{{ x }}", "<b>&amp;", "a</think>b"])
)
CALLS = st.lists(
    st.fixed_dictionaries(
        {"name": st.text(max_size=5), "arguments": st.dictionaries(st.text(max_size=3), CONTENT)}
    ),
    max_size=3,
)
MESSAGE = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": CONTENT}),
)
CALL = st.fixed_dictionaries({"role": st.just("assistant"), "content": st.none(), "tool_calls": CALLS})
TOOL = st.fixed_dictionaries(
    {"type": st.just("function"), "function": st.fixed_dictionaries({"name": st.text(max_size=5)})}
)


def theirs(source: str, messages: list[Any], opened: bool, tools: list[Any] | None) -> str | None:
    """What transformers renders; None where it fails."""
    try:
        rendered, _ = render_jinja_template(
            [messages],
            tools=tools,
            chat_template=source,
            add_generation_prompt=opened,
            bos_token="<s>",
            eos_token="</s>",
        )
    except Exception:
        return None
    return rendered[0]


@pytest.mark.parametrize("name", chat_templates.EVERY)
@settings(max_examples=150, deadline=None)
@given(data=st.data(), opened=st.booleans())
def test_equal_to_transformers(name: str, data: st.DataObject, opened: bool) -> None:
    source = chat_templates.EVERY[name]
    message = st.one_of(MESSAGE, CALL) if name == "tools" else MESSAGE
    messages = data.draw(st.lists(message, min_size=1, max_size=5))
    tools = data.draw(st.one_of(st.none(), st.lists(TOOL, max_size=2))) if name == "tools" else None
    ours = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    wanted = theirs(source, messages, opened, tools)
    if wanted is None:
        with pytest.raises(TemplateError):
            ours.render(messages, opened, tools)
    else:
        assert ours.render(messages, opened, tools) == wanted


def test_the_templates_refusal_is_told() -> None:
    with pytest.raises(TemplateError, match="roles must alternate"):
        ChatTemplate(chat_templates.MISTRAL).render([{"role": "assistant", "content": "x"}])


def test_the_date_is_given() -> None:
    assert ChatTemplate("{{ strftime_now('%Y') }}").render([]) in (time.strftime("%Y"), "")


def test_threads_do_not_share_limits() -> None:
    template = ChatTemplate(chat_templates.CHATML)
    messages = [{"role": "user", "content": "x" * 1000}] * 200
    wanted = template.render(messages)
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(template.render(messages))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [wanted] * 8


def test_limits_grow_with_the_conversation() -> None:
    messages = [{"role": "user", "content": "word " * 4000}] * 400  # eight million characters
    text = ChatTemplate(chat_templates.LLAMA3).render(messages)
    assert len(text) > 8_000_000 - 400


BIG = "{% set a = range(99999) | list %}{% set b = range(99999) | list %}"
GROW = "{% set ns = namespace(x='aaaaaaaa', y=[1], z=(1,)) %}{% for i in range(100) %}"
HOSTILE = {
    # loops
    "range": "{% for i in range(10**9) %}x{% endfor %}",
    "nested": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "nested, with output": "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "nested, filtered": "{% for i in range(99999) %}{% for j in range(99999) if j < 0 %}{% endfor %}{% endfor %}",
    "continue": "{% for i in range(99999) %}{% for j in range(99999) %}{% continue %}{% endfor %}{% endfor %}",
    "mapped": "{% for i in range(99999) %}{% for j in range(99999) | map('string') %}{% endfor %}{% endfor %}",
    "macro": "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "macro tree": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursive": "{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
    "recursive tree": "{% for x in [1, 2] recursive %}{% if loop.depth < 60 %}{{ loop([1, 2]) }}{% endif %}{% endfor %}",
    # long work in single steps
    "equal": BIG + "{% for i in range(99999) %}{% if a == b %}{% endif %}{% endfor %}",
    "equal, unrolled": BIG + "{% if " + " and ".join(["a==b"] * 500) + " %}{% endif %}",
    "in": BIG + "{% for i in range(99999) %}{% if -1 in a %}{% endif %}{% endfor %}",
    "is in": BIG + "{% for i in range(99999) %}{% if -1 is in a %}{% endif %}{% endfor %}",
    "sort": BIG + "{% for i in range(99999) %}{% set b = a | sort %}{% endfor %}",
    "words": "{% for i in range(99999) %}{{ ('a ' * 100000) | wordcount }}{% endfor %}",
    "power": "{{ 9 ** 99 ** 99 ** 99 }}",
    "power, twice": "{{ (2 ** 2000) ** 2000 }}",
    "round": "{{ 5 | round(-10**9) }}",
    # memory
    "times": "{{ 'a' * 10**9 }}",
    "times, turned": "{{ 10**9 * 'a' }}",
    "list times": "{{ [1] * 10**7 }}",
    "tilde": GROW + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "plus": GROW + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "lists": GROW + "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.y }}",
    "lists, compared": GROW + "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.y == [ns.y] }}",
    "tuples": GROW + "{% set ns.z = (ns.z, ns.z) %}{% endfor %}{{ ns.z }}",
    "dicts": GROW + "{% set ns.y = {'a': ns.y, 'b': ns.y} %}{% endfor %}{{ ns.y | tojson }}",
    "dicts, called": GROW + "{% set ns.y = dict(a=ns.y, b=ns.y) %}{% endfor %}{{ ns.y | tojson }}",
    "namespace in itself": "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
    "namespace in a list": "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x }}",
    "set block": "{% set a %}" + "{{ 'a' * 100000 }}" * 2000 + "{% endset %}{{ a }}",
    "format": "{{ '%999999999d' % 1 }}",
    "format, starred": "{{ '%*d' % (999999999, 1) }}",
    "format, repeated": "{{ ('%(a)s' * 10000) % {'a': 'x' * 100000} }}",
    "str.format": "{{ '{:>999999999}'.format(1) }}",
    "ljust": "{{ 'a'.ljust(10**9) }}",
    "expandtabs": "{{ '\t'.expandtabs(10**9) }}",
    "center": "{{ 'a' | center(10**9) }}",
    "indent": "{{ 'a\nb' | indent(10**9) }}",
    "join": "{{ range(99999) | join('a' * 100000) }}",
    "str.join": "{{ ('a' * 100000).join(['b'] * 99999) }}",
    "replace": "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
    "str.replace": "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
    "tojson": "{{ [1] | tojson(indent=10**9) }}",
    "to_bytes": "{{ (5).to_bytes(10**9, 'big') }}",
    "strftime": "{{ strftime_now('%1000000000d') }}",
    "lipsum": "{{ lipsum(10**6) }}",
    "slices": "{% set a = 'a' * 1000000 %}{% for i in range(99999) %}{% set b = a[1:] %}{% endfor %}",
    # reaching out
    "class": "{{ ''.__class__.__mro__ }}",
    "class of messages": "{% set x = messages.__class__ %}",
    "class, as an item": "{{ ''['__class__'] }}",
    "class, by filter": "{{ '' | attr('__class__') }}",
    "class, by format": "{{ '{0.__class__}'.format(1) }}",
    "class, by map": "{{ [''] | map(attribute='__class__') | list }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "init": "{{ namespace.__init__.__globals__ }}",
    "self": "{{ self.__init__ }}",
    "mutation": "{{ messages.append(1) }}",
    "mutation of a message": "{{ messages[0].update(role='x') }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "extends": "{% extends 'x' %}",
    # syntax
    "not jinja": "{% for %}",
    "unfinished": "{{ 'a",
    "nested ifs": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "minus": "{{ " + "-" * 60000 + "1 }}",
    "sums": "{{ " + "+".join(["1"] * 30000) + " }}",
    "many nodes": "{{ a.b }}" * 7000,
    "long": "a" * 10**6,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_are_stopped(name: str) -> None:
    began, before = time.thread_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TemplateError, match=r"^\[chat template\] ."):
        ChatTemplate(HOSTILE[name]).render([{"role": "user", "content": "hi"}])
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 256 * 1024, f"{grown} KiB"
    assert time.thread_time() - began < 5  # not a measurement: unlimited, each of these takes hours


@pytest.mark.parametrize("value", [object(), {1: 2}, b"x", {"a": {"b": [set()]}}])
def test_only_plain_data_reaches_a_template(value: Any) -> None:
    with pytest.raises(InputError, match=r"extra"):
        ChatTemplate("x").render([], extra=value)


def test_messages_are_left_alone() -> None:
    messages = [{"role": "user", "content": "x", "list": [1]}]
    ChatTemplate("{% for m in messages %}{% set x = m.list %}{{ x }}{% endfor %}").render(messages)
    assert messages == [{"role": "user", "content": "x", "list": [1]}]
