"""Jinja for templates that nobody has vouched for: what they may reach, and how much they may do.

Reach is Jinja's own immutable sandbox, narrowed to the filters and methods that chat templates use. Work is
counted by a `Meter` (meter.py). The one thing that could not be stopped in time, a single call that makes
something huge, is checked before it is made.
"""

from __future__ import annotations

import functools
import json
import re
import threading
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from jinja2 import filters, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context

from trivet.errors import TemplateError
from trivet.text.meter import Counted, Meter

MAX_SOURCE = 64 * 1024  # characters of a template
MAX_NODES = 10_000  # of its syntax tree

FILTERS = """abs capitalize count d default dictsort first float groupby int items last length list lower map
max min reject rejectattr reverse safe select selectattr sort string title trim truncate unique upper
wordcount"""
STRING_METHODS = """capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit
islower isnumeric isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind
rindex rpartition rsplit rstrip split splitlines startswith strip swapcase title upper"""
METHODS: dict[type, frozenset[str]] = {
    str: frozenset(STRING_METHODS.split()),
    dict: frozenset(["copy", "get", "items", "keys", "values"]),
    list: frozenset(["copy", "count", "index"]),
    tuple: frozenset(["count", "index"]),
    float: frozenset(["is_integer"]),
    int: frozenset(),
    bytes: frozenset(),
}


class _Generator(CodeGenerator):
    """Sends through the meter what Jinja compiles to plain Python."""

    def _wrapped(self, name: str, visit: Callable[..., None], node: nodes.Node, frame: Frame) -> None:
        self.write(f"environment.{name}(")
        visit(node, frame)
        self.write(")")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat((")
        for part in node.nodes:
            self.write("environment.text(")
            self.visit(part, frame)
            self.write("), ")
        self.write("))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._wrapped("made", super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._wrapped("made", super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self._wrapped("made", super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        self._wrapped("compared", super().visit_Compare, node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if isinstance(node.arg, nodes.Slice):
            self._wrapped("made", super().visit_Getitem, node, frame)
        else:
            super().visit_Getitem(node, frame)


class _Generation(Extension):
    """{% generation %}: marks the assistant's words for training; it changes no text."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of chat templates. One may be used by several threads."""

    code_generator_class = _Generator
    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "**", "%"])

    def __init__(self) -> None:
        # No optimizer: it would compute constants while compiling, unmetered.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[_Generation, loopcontrols],
            finalize=pass_context(lambda _, value: self.text(value)),
        )
        self._current = threading.local()
        kept = {name: self.filters[name] for name in FILTERS.split()}
        own = {
            "indent": self._indent,
            "join": self._join,
            "replace": self._replace,
            "round": self._round,
            "tojson": self._tojson,
        }
        self.filters = {name: self._metered(f) for name, f in {**kept, **own}.items()}
        self.tests = {name: self._compared(f) for name, f in dict[str, Any](self.tests).items()}
        self.filters["counted"] = lambda items: Counted(items, self.meter)
        self.globals = {
            name: self.globals[name] for name in ("range", "dict", "namespace", "cycler", "joiner")
        }

    @property
    def meter(self) -> Meter:
        meter: Meter = self._current.meter
        return meter

    @meter.setter
    def meter(self, meter: Meter) -> None:
        self._current.meter = meter

    # --- what compiled templates call ---

    def made(self, value: Any) -> Any:
        self.meter.step()
        return self.meter.made(value)

    def compared(self, value: Any) -> Any:
        self.meter.step()
        self.meter.check_time()
        return value

    def text(self, value: Any) -> str:
        """`value` as text; a container's is bounded by its size."""
        self.meter.step()
        if isinstance(value, str):
            return value
        if isinstance(value, Namespace):
            raise TemplateError("[chat template] a namespace is not text")
        self.meter.made(value)
        return str(value)

    def concat(self, parts: Iterable[str]) -> str:
        parts = list(parts)
        self.meter.step()
        self.meter.room(sum(map(len, parts)))
        joined: str = self.meter.made("".join(parts))
        return joined

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        __self.meter.step()
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(__obj, LoopContext) and args:  # a recursive loop
            args = (Counted(args[0], __self.meter), *args[1:])
        elif isinstance(owner, str) and name == "join":
            return __self._join(args[0], owner)
        elif isinstance(owner, str) and name == "replace":
            return __self._replace(owner, *args, **kwargs)
        return __self.meter.made(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.meter.step()
        if operator in "+*":
            a, b = self.meter.size(left), self.meter.size(right)
            if operator == "*" and isinstance(left, int) != isinstance(right, int):
                a = a * max(right, 0) if isinstance(right, int) else b * max(left, 0)
            self.meter.room(a + b)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            self.meter.room(left.bit_length() * max(right, 0) * 64)
        elif operator == "%" and isinstance(left, str):
            if re.search(r"\*|\d{3}", left):
                raise TemplateError("[chat template] a % format with a width of three digits, or of *")
            self.meter.room(len(left) + left.count("%") * (100 + self.meter.size(right)))
        return self.meter.made(super().call_binop(context, operator, left, right))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kind, allowed in METHODS.items():
            if isinstance(obj, kind):
                return attr in allowed
        return super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        raise TemplateError(
            f"[chat template] {attribute!r} of a {type(obj).__name__}: templates may not reach it"
        )

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        return None  # str.format is not among METHODS

    # --- compiling ---

    def _generate(self, source: nodes.Template, *arguments: Any, **options: Any) -> str:
        if sum(1 for _ in source.find_all(nodes.Node)) > MAX_NODES:
            raise TemplateError(f"[chat template] more than {MAX_NODES} nodes of syntax")
        for loop in list(source.find_all(nodes.For)):
            loop.iter = nodes.Filter(loop.iter, "counted", [], [], None, None, lineno=loop.lineno)
        return super()._generate(source, *arguments, **options)

    # --- filters whose result can be far larger than what goes in ---

    def _metered(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.meter.step()
            return self.meter.made(function(*args, **kwargs))

        return counted

    def _compared(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            return self.compared(function(*args, **kwargs))

        return counted

    def _join(self, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        if attribute is not None:
            value = map(filters.make_attrgetter(self, attribute), value)
        parts = [self.text(item) for item in value]
        separator = self.text(d)
        self.meter.room(sum(map(len, parts)) + len(separator) * len(parts))
        joined: str = self.meter.made(separator.join(parts))
        return joined

    def _replace(self, s: Any, old: str, new: str, count: int = -1) -> str:
        text, old, new = self.text(s), self.text(old), self.text(new)
        found = text.count(old) if count is None or count < 0 else min(count, text.count(old))
        self.meter.room(len(text) + found * len(new))
        replaced: str = self.meter.made(text.replace(old, new, -1 if count is None else count))
        return replaced

    def _indent(self, s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        text = self.text(s)
        step = width if isinstance(width, int) else len(width)
        self.meter.room(len(text) + step * (text.count("\n") + 2))
        return filters.do_indent(text, width, first, blank)

    def _round(self, value: float, precision: int = 0, method: Any = "common") -> float:
        if abs(precision) > 15:
            raise TemplateError(f"[chat template] round to {precision} digits; allowed: -15 to 15")
        return filters.do_round(value, precision, method)

    def _tojson(
        self,
        x: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """As Hugging Face defines it: json.dumps, without Jinja's HTML escapes."""
        if not 0 <= (indent or 0) <= 16 or max(map(len, separators or ("",))) > 16:
            raise TemplateError("[chat template] tojson with an indent or separator wider than 16")
        self.meter.made(x)
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        if indent is None:
            return encoder.encode(x)
        out, size = [], 0
        for piece in encoder.iterencode(x):
            size += len(piece)
            self.meter.room(size)
            out.append(piece)
        return "".join(out)
