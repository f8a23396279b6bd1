"""Every operation, as a function from nodes (or tensors, arrays, scalars) to nodes: the table's public face.

Each function checks shapes and dtypes when it is called and computes nothing. Names are the field's.
"""

from trivet.ops.after import after
from trivet.ops.attention import (
    attention,
    attention_backward,
)
from trivet.ops.cross_entropy import (
    cross_entropy,
    cross_entropy_backward,
    linear_cross_entropy,
    linear_cross_entropy_backward,
)
from trivet.ops.dequantize import (
    dequantize,
)
from trivet.ops.elementwise import (
    abs,
    add,
    cast,
    cos,
    div,
    eq,
    erf,
    exp,
    ge,
    gelu_erf,
    gelu_tanh,
    gt,
    iota,
    le,
    log,
    logical_and,
    logical_not,
    logical_or,
    lt,
    maximum,
    minimum,
    mul,
    ne,
    neg,
    pow,
    relu,
    rsqrt,
    sigmoid,
    silu,
    sin,
    sqrt,
    sub,
    tanh,
    where,
)
from trivet.ops.embedding import (
    embedding,
)
from trivet.ops.glu import (
    geglu,
    geglu_backward,
    swiglu,
    swiglu_backward,
)
from trivet.ops.linear import (
    linear,
    linear_input_grad,
)
from trivet.ops.matmul import (
    addmm,
    matmul,
)
from trivet.ops.movement import (
    broadcast_to,
    concat,
    full,
    pad,
    permute,
    reshape,
    scatter_add,
    slice,
    take,
)
from trivet.ops.norm import (
    layer_norm,
    layer_norm_backward,
    rms_norm,
    rms_norm_backward,
)
from trivet.ops.optimizer import (
    accumulate,
    adamw,
    grad_norm,
)
from trivet.ops.paged import (
    kv_append,
    paged_attention,
)
from trivet.ops.random import (
    random_bits,
    random_normal,
    random_uniform,
)
from trivet.ops.reduce import (
    argmax,
    logsumexp,
    max,
    mean,
    min,
    sum,
)
from trivet.ops.rope import (
    rope,
    rope_frequencies,
    rope_table,
)
from trivet.ops.softmax import (
    causal_softmax,
    log_softmax,
    softmax,
)

__all__ = [
    "abs",
    "accumulate",
    "adamw",
    "add",
    "addmm",
    "after",
    "argmax",
    "attention",
    "attention_backward",
    "broadcast_to",
    "cast",
    "causal_softmax",
    "concat",
    "cos",
    "cross_entropy",
    "cross_entropy_backward",
    "dequantize",
    "div",
    "embedding",
    "eq",
    "erf",
    "exp",
    "full",
    "ge",
    "geglu",
    "geglu_backward",
    "gelu_erf",
    "gelu_tanh",
    "grad_norm",
    "gt",
    "iota",
    "kv_append",
    "layer_norm",
    "layer_norm_backward",
    "le",
    "linear",
    "linear_cross_entropy",
    "linear_cross_entropy_backward",
    "linear_input_grad",
    "log",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logsumexp",
    "lt",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mul",
    "ne",
    "neg",
    "pad",
    "paged_attention",
    "permute",
    "pow",
    "random_bits",
    "random_normal",
    "random_uniform",
    "relu",
    "reshape",
    "rms_norm",
    "rms_norm_backward",
    "rope",
    "rope_frequencies",
    "rope_table",
    "rsqrt",
    "scatter_add",
    "sigmoid",
    "silu",
    "sin",
    "slice",
    "softmax",
    "sqrt",
    "sub",
    "sum",
    "swiglu",
    "swiglu_backward",
    "take",
    "tanh",
    "where",
]
