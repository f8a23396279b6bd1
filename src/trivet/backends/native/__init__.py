"""The native backend: the C++ core, on the CPU.

`lower` makes every call of a graph one that the core has a kernel for; the graph becomes a plan, the plan a
program. Programs without weights and state are kept by the bytes of their plan, so that evaluating the same
expression again compiles nothing.
"""

from trivet.backends.native.backend import BACKEND, NativeBackend, cpu_rates, lower, supports
from trivet.backends.native.program import Handle

__all__ = ["BACKEND", "Handle", "NativeBackend", "cpu_rates", "lower", "supports"]
