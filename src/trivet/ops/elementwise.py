"""Elementwise rows: one output element depends on one element of each input (NumPy broadcasting).

The public functions promote first (`dtypes.promote`; a Python scalar is weak: it takes the other's dtype
unless it is a float and the other is not). IEEE 754 rules hold for infinities, NaN and zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trivet import dtypes
from trivet.dtypes import DType, f32
from trivet.errors import DTypeError, InputError
from trivet.graph import Node, Shape, Spec
from trivet.ops.rules import (
    ARITHMETIC,
    EXACT,
    alike,
    axis_of,
    broadcast,
    elementwise,
    one_of,
    operands,
    sizes_of,
    sum_to,
    tolerance,
)
from trivet.ops.table import GradientContext, NoGradient, Row, Sample, call, define, unwrap

Function = Callable[..., Any]
INF, NAN = np.inf, np.nan
#: What goes wrong in a careless kernel: infinities, NaN, both zeros, huge and tiny, and an odd count.
HOSTILE = np.array([INF, -INF, NAN, 0.0, -0.0, 1e30, -1e30, 1e-30, 1.0, -2.5, 3.0])


def _named(name: str, doc: str, function: Function) -> Function:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def _integers(kind: Any, *shapes: tuple[int, ...]) -> Callable[[Any], list[Any]]:
    return lambda r: [r.integers(-9, 9, s).astype(kind) for s in shapes]


def _floats(*args: Node) -> list[Node]:
    return [a if a.dtype.is_float else cast(a, f32) for a in args]


# --- one input -----------------------------------------------------------------------------------


def _unary(
    name: str,
    doc: str,
    gradient: Callable[[GradientContext], Any],
    *,
    allowed: Sequence[DType] = dtypes.FLOATS,
    hostile: Any = HOSTILE,
    low: float = -4.0,
    high: float = 4.0,
    bound: float = 1e-6,
) -> Function:
    """Defines a row of one input; its samples are uniform in [low, high] and the hostile values."""
    samples = [
        Sample(lambda r: (r.uniform(low, high, (3, 17)),)),
        Sample(lambda r: (r.uniform(low, high, ()),), note="0-d"),
        Sample(lambda r: (np.zeros((0, 3)),), note="empty"),
        Sample(lambda r: (np.array(hostile),), gradient=False, note="hostile"),
    ]
    if dtypes.i32 in allowed:
        samples += [Sample(_integers(t, (5, 3))) for t in (np.int32, np.int64)]
    row = define(
        name,
        infer=elementwise(name, allowed),
        gradient=lambda c: [gradient(c)],
        samples=samples,
        tolerance=tolerance(bound),
        doc=doc.splitlines()[0],
    )

    def function(x: Any) -> Any:
        (node,), wrap = operands(name, x)
        return wrap(row.node(_floats(node) if allowed == dtypes.FLOATS else [node], {}))

    what = "Floats, i32 and i64" if allowed == ARITHMETIC else "Floats; integers become f32 first"
    return _named(name, f"{doc}\n\n{what}, of any shape; the result has x's.", function)


_SMALL = np.array([INF, NAN, 0.0, -0.0, 50.0, -50.0, 1e-30])

neg: Function = _unary("neg", "-x.", lambda c: neg(c.g), allowed=ARITHMETIC)
abs: Function = _unary(
    "abs", "|x|; the gradient at 0 is 0.", lambda c: mul(c.g, _sign(c.inputs[0])), allowed=ARITHMETIC
)
exp: Function = _unary(
    "exp", "e to the x.", lambda c: mul(c.g, c.y), hostile=[INF, -INF, NAN, 0.0, 88.0, -88.0, -200.0]
)
log: Function = _unary(
    "log", "The natural logarithm: -inf at 0, NaN below.", lambda c: div(c.g, c.inputs[0]), low=0.1
)
sqrt: Function = _unary("sqrt", "The square root: NaN below 0.", lambda c: div(c.g, mul(2.0, c.y)), low=0.1)
rsqrt: Function = _unary(
    "rsqrt",
    "1 / sqrt(x): inf at 0, NaN below.",
    lambda c: mul(mul(-0.5, c.g), mul(c.y, mul(c.y, c.y))),
    low=0.1,
    hostile=[INF, NAN, 0.0, 1e30, 4.0, -1.0],
)
sin: Function = _unary(
    "sin",
    "The sine of x radians; NaN at an infinity.",
    lambda c: mul(c.g, cos(c.inputs[0])),
    hostile=[INF, -INF, NAN, 0.0, 1000.0, -3e4],
)
cos: Function = _unary(
    "cos",
    "The cosine of x radians; NaN at an infinity.",
    lambda c: neg(mul(c.g, sin(c.inputs[0]))),
    hostile=[INF, -INF, NAN, 0.0, 1000.0, -3e4],
)
tanh: Function = _unary("tanh", "The hyperbolic tangent.", lambda c: mul(c.g, sub(1.0, mul(c.y, c.y))))
sigmoid: Function = _unary(
    "sigmoid", "1 / (1 + exp(-x)), without overflow.", lambda c: mul(c.g, mul(c.y, sub(1.0, c.y)))
)
erf: Function = _unary(
    "erf",
    "The error function, 2/sqrt(pi) times the integral of exp(-t*t) from 0 to x.",
    lambda c: mul(c.g, mul(2.0 / math.sqrt(math.pi), exp(neg(mul(c.inputs[0], c.inputs[0]))))),
)
relu: Function = _unary(
    "relu", "max(x, 0); NaN stays, the gradient at 0 is 0.", lambda c: where(gt(c.inputs[0], 0.0), c.g, 0.0)
)


def _silu_gradient(c: GradientContext) -> Any:
    s = sigmoid(c.inputs[0])
    return mul(c.g, mul(s, add(1.0, mul(c.inputs[0], sub(1.0, s)))))


silu: Function = _unary(
    "silu", "x * sigmoid(x), also called swish (arXiv:1702.03118).", _silu_gradient, hostile=_SMALL
)
gelu_erf: Function = _unary(
    "gelu_erf",
    "x * Phi(x) with the normal distribution function, exact (arXiv:1606.08415).",
    lambda c: call("gelu_backward", c.g, c.inputs[0], approximate=False),
    hostile=_SMALL,
)
gelu_tanh: Function = _unary(
    "gelu_tanh",
    "x * Phi(x) by the tanh approximation (arXiv:1606.08415, section 2).",
    lambda c: call("gelu_backward", c.g, c.inputs[0], approximate=True),
    hostile=_SMALL,
)


def _sign(x: Node) -> Node:
    sign: Node = sub(cast(gt(x, 0), x.dtype), cast(lt(x, 0), x.dtype))
    return sign


# --- two inputs ----------------------------------------------------------------------------------


def _binary(
    name: str,
    doc: str,
    gradient: Callable[[GradientContext], Sequence[Any]] | str,
    *,
    allowed: Sequence[DType] = ARITHMETIC,
    result: DType | None = None,
    hostile: tuple[Any, Any] = (HOSTILE[:, None], HOSTILE[None, :]),
    low: float = -4.0,
) -> Function:
    """Defines a row of two inputs; a gradient given as text is the reason why there is none."""
    samples = [
        Sample(lambda r: (r.uniform(low, 4, (3, 4)), r.uniform(low, 4, (3, 4)))),
        Sample(lambda r: (r.uniform(low, 4, (2, 1, 17)), r.uniform(low, 4, (3, 1)))),
        Sample(lambda r: (r.uniform(low, 4, ()), r.uniform(low, 4, (5,))), note="0-d"),
        Sample(lambda r: (np.zeros((0, 3)), np.ones((1, 3))), note="empty"),
        Sample(lambda r: hostile, gradient=False, note="hostile"),
    ]
    if dtypes.i32 in allowed:
        samples += [Sample(_integers(t, (5, 3), (1, 3))) for t in (np.int32, np.int64)]

    def rule(c: GradientContext) -> list[Node]:
        return [sum_to(g, i.shape) for g, i in zip(gradient(c), c.inputs, strict=True)]  # type: ignore[operator]

    row = define(
        name,
        infer=elementwise(name, allowed, result),
        gradient=NoGradient(gradient) if isinstance(gradient, str) else rule,
        samples=samples,
        tolerance=tolerance(1e-6),
        doc=doc.splitlines()[0],
    )

    def function(a: Any, b: Any) -> Any:
        nodes, wrap = operands(name, a, b)
        return wrap(row.node(_floats(*nodes) if allowed == dtypes.FLOATS else nodes, {}))

    what = "Floats, i32 and i64" if allowed == ARITHMETIC else "Floats; integers become f32 first"
    return _named(
        name,
        f"{doc.rstrip()}\n\n    {what}. Dtypes promote, shapes broadcast; ShapeError if they do not.",
        function,
    )


def _larger(c: GradientContext, a_wins: Function) -> list[Any]:
    """The gradient goes to the winner; equals share it."""
    a, b = c.inputs
    half = mul(0.5, cast(eq(a, b), c.g.dtype))
    won = add(cast(a_wins(a, b), c.g.dtype), half)
    return [mul(c.g, won), mul(c.g, sub(1.0, won))]


def _pow_gradient(c: GradientContext) -> list[Any]:
    a, b = c.inputs
    zero = eq(a, 0.0)  # a zero base does not move with the exponent, and its logarithm must not be seen
    towards_b = where(zero, 0.0, mul(c.g, mul(c.y, log(where(zero, 1.0, a)))))
    return [mul(c.g, mul(b, pow(a, sub(b, 1.0)))), towards_b]


add: Function = _binary(
    "add",
    """a + b.

    >>> add(np.zeros((2, 1), np.float32), np.zeros(3, np.float16))
    <add f32[2, 3]>
    >>> add(np.arange(3), 0.5)
    <add f32[3]>
    """,
    lambda c: [c.g, c.g],
)
sub: Function = _binary("sub", "a - b.", lambda c: [c.g, neg(c.g)])
mul: Function = _binary("mul", "a * b.", lambda c: [mul(c.g, c.inputs[1]), mul(c.g, c.inputs[0])])
div: Function = _binary(
    "div",
    "a / b; integers are divided as f32. A zero divisor gives an infinity or NaN.",
    lambda c: [div(c.g, c.inputs[1]), neg(div(mul(c.g, c.y), c.inputs[1]))],
    allowed=dtypes.FLOATS,
)
pow: Function = _binary(
    "pow",
    "a to the power b, as C's pow; the gradient in b at a = 0 is 0.",
    _pow_gradient,
    allowed=dtypes.FLOATS,
    low=0.1,
    hostile=(
        np.array([INF, NAN, 0.0, 2.0, -2.0, 1.0])[:, None],
        np.array([INF, -INF, NAN, 0.0, 1.0, 2.0, 3.0, -1.0, 0.5]),
    ),
)
maximum: Function = _binary(
    "maximum", "The larger of a and b; NaN if either is. Equals share the gradient.", lambda c: _larger(c, gt)
)
minimum: Function = _binary(
    "minimum",
    "The smaller of a and b; NaN if either is. Equals share the gradient.",
    lambda c: _larger(c, lt),
)


def _comparison(name: str, doc: str) -> Function:
    return _binary(name, doc, "a comparison is constant wherever it has a slope", result=dtypes.bool_)


eq: Function = _comparison("eq", "a == b, as bool; NaN equals nothing.")
ne: Function = _comparison("ne", "a != b, as bool; NaN differs from everything.")
lt: Function = _comparison("lt", "a < b, as bool; false if either is NaN.")
le: Function = _comparison("le", "a <= b, as bool; false if either is NaN.")
gt: Function = _comparison("gt", "a > b, as bool; false if either is NaN.")
ge: Function = _comparison("ge", "a >= b, as bool; false if either is NaN.")


def _logical(name: str, doc: str, count: int) -> Function:
    shapes = ((3, 5), (1, 5))[:count]
    row: Row = define(
        name,
        infer=elementwise(name, (dtypes.bool_,)),
        gradient=NoGradient("truth values have no slope"),
        samples=[Sample(lambda r: [r.integers(0, 2, s).astype(bool) for s in shapes])],
        tolerance={dtypes.bool_: 0.0},
        doc=doc,
    )

    def function(*args: Any) -> Any:
        if len(args) != count:
            raise InputError(f"[{name}] {len(args)} arguments, wanted {count}")
        return row(*args)

    return _named(name, doc, function)


logical_and: Function = _logical("logical_and", "a and b, of bools.", 2)
logical_or: Function = _logical("logical_or", "a or b, of bools.", 2)
logical_not: Function = _logical("logical_not", "not x, of bools.", 1)


# --- the rest ------------------------------------------------------------------------------------


def _where_infer(cond: Spec, a: Spec, b: Spec) -> Spec:
    one_of("where", (dtypes.bool_,), cond)
    one_of("where", (*ARITHMETIC, dtypes.bool_), a, b)
    return Spec(broadcast("where", cond.shape, a.shape, b.shape), alike("where", a, b))


def _where_gradient(c: GradientContext) -> list[Node | None]:
    cond, a, b = c.inputs
    return [None, sum_to(where(cond, c.g, 0.0), a.shape), sum_to(where(cond, 0.0, c.g), b.shape)]


def _cond(r: Any, *shape: int) -> Any:
    return r.integers(0, 2, shape).astype(bool)


_where = define(
    "where",
    infer=_where_infer,
    gradient=_where_gradient,
    samples=[
        Sample(lambda r: (_cond(r, 3, 1), r.standard_normal((3, 17)), r.standard_normal((17,)))),
        Sample(lambda r: (_cond(r, 2, 3), r.standard_normal(()), r.standard_normal((2, 3))), note="0-d"),
        Sample(
            lambda r: (_cond(r, 11), HOSTILE, np.zeros(11)), gradient=False, note="hostile: not a product"
        ),
        Sample(lambda r: (_cond(r, 0, 3), np.ones((1, 3)), np.zeros((0, 3))), note="empty"),
        Sample(lambda r: (_cond(r, 4), np.arange(4, dtype=np.int32), np.int32(7))),
        Sample(lambda r: (_cond(r, 4), np.arange(4), np.arange(4)[::-1].copy())),
        Sample(lambda r: (_cond(r, 4), _cond(r, 4), _cond(r, 4))),
    ],
    tolerance=EXACT,
    doc="a where cond is true, else b; what is not chosen is not looked at.",
)


def where(cond: Any, a: Any, b: Any) -> Any:
    """`a` where `cond` (bool) is true, else `b`. The three broadcast; `a` and `b` promote.

    >>> where(np.array([True, False]), 1.0, np.zeros((3, 2), np.float32))
    <where f32[3, 2]>
    """
    (chosen,), _ = unwrap("where", [cond])
    nodes, _ = operands("where", a, b)
    _, wrap = unwrap("where", [cond, a, b])
    return wrap(_where.node([chosen, *nodes], {}))


def _cast_infer(x: Spec, dtype: str) -> Spec:
    target = dtypes.BY_NAME.get(dtype)
    if target is None or target.is_packed:
        raise DTypeError(f"[cast] to {dtype!r}; dense dtypes are {', '.join(d.name for d in dtypes.DENSE)}")
    one_of("cast", dtypes.DENSE, x)
    return Spec(x.shape, target)


_LIMITS = np.array(
    [INF, -INF, NAN, 0.0, -0.9, 1.5, 2.5, -127.5, 255.9, 3e9, -3e9, 1e19, -1e19, 65519.0, 65520.0]
)


def _casts(values: Any, note: str = "") -> list[Sample]:
    """To each dtype."""
    return [Sample(lambda r: (values,), {"dtype": d.name}, gradient=False, note=note) for d in dtypes.DENSE]


_cast = define(
    "cast",
    attrs={"dtype": str},
    infer=_cast_infer,
    gradient=lambda c: [cast(c.g, c.inputs[0].dtype) if c.inputs[0].dtype.is_float else None],
    samples=[
        *_casts(_LIMITS, "limits"),
        *(Sample(lambda r: (r.standard_normal((3, 5)),), {"dtype": n}) for n in ("f32", "f64")),
        *_casts(np.array([-(2**31), -129, -1, 0, 1, 300, 2**24 + 1], np.int32)),
        *_casts(np.array([-(2**40) - 1, 2**31, 65535, 2**53 + 1])),
        *(Sample(lambda r: (np.array([True, False]),), {"dtype": d}) for d in ("f32", "bf16", "i32", "bool")),
        Sample(lambda r: (np.array([0, 7, 255], np.uint8),), {"dtype": "f32"}),
        Sample(lambda r: (np.array([-128, 127], np.int8),), {"dtype": "i64"}),
    ],
    tolerance=EXACT,
    doc="x as another dense dtype: nearest even between floats, towards zero and saturating to integers.",
)


def cast(x: Any, dtype: DType | str) -> Any:
    """`x` as another dense dtype.

    Float to float rounds to nearest even and overflows to infinity; float to integer goes towards zero and
    stops at the limits, NaN becomes 0; integer to narrower integer wraps; anything but 0 is true. What has
    the dtype already is given back as it is.

    >>> cast(np.zeros(3, np.float32), "bf16")
    <cast bf16[3]>
    """
    (node,), wrap = unwrap("cast", [x])
    name = dtype if isinstance(dtype, str) else dtype.name
    return wrap(node if node.dtype.name == name else _cast.node([node], {"dtype": name}))


def _iota_infer(shape: Shape, axis: int, dtype: str) -> Spec:
    target = dtypes.BY_NAME.get(dtype)
    if target not in ARITHMETIC:
        raise DTypeError(f"[iota] dtype {dtype!r}, wanted one of {', '.join(map(str, ARITHMETIC))}")
    assert target is not None
    if not 0 <= axis < len(shape):
        axis_of("iota", len(shape), shape)  # raises
    return Spec(tuple(shape), target)


_iota = define(
    "iota",
    attrs={"shape": tuple, "axis": int, "dtype": str},
    infer=_iota_infer,
    gradient=NoGradient("it has no inputs"),
    samples=[
        Sample(lambda r: (), {"shape": (3, 5), "axis": 1, "dtype": "i32"}),
        Sample(lambda r: (), {"shape": (3, 5), "axis": 0, "dtype": "f32"}),
        Sample(lambda r: (), {"shape": (0, 5), "axis": 0, "dtype": "i64"}, note="empty"),
        Sample(lambda r: (), {"shape": (7,), "axis": 0, "dtype": "i64"}),
    ],
    tolerance=EXACT,
    doc="The index along one axis.",
)


def iota(shape: Sequence[Any], axis: int = 0, dtype: DType | str = dtypes.i32) -> Any:
    """An array of `shape` whose elements are their own index along `axis`.

    >>> iota((2, 3), axis=-1)
    <iota i32[2, 3]>
    """
    shape = sizes_of("iota", shape)
    name = dtype if isinstance(dtype, str) else dtype.name
    return _iota(shape=shape, axis=axis_of("iota", axis, shape), dtype=name)
