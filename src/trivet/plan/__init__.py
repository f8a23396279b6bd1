"""Plans: a graph as versioned bytes, which the native core loads, verifies and runs without Python.

docs/plan-format.md is the layout, field by field. `build` makes a `Plan` of a graph; `encode` and `decode`
turn it into bytes and back; `describe` says in words what is in it. Equal graphs give equal bytes.
"""

from trivet.plan.build import build
from trivet.plan.describe import describe
from trivet.plan.format import decode, encode
from trivet.plan.passes import deduplicate, rebuilt, rewrite, rewrite_graph, signature
from trivet.plan.structure import Op, Plan, Value
from trivet.plan.verify import verify

__all__ = [
    "Op",
    "Plan",
    "Value",
    "build",
    "decode",
    "deduplicate",
    "describe",
    "encode",
    "rebuilt",
    "rewrite",
    "rewrite_graph",
    "signature",
    "verify",
]
