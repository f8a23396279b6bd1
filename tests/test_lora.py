"""Which layers a Lora takes."""

import pytest

from trivet import graph, ops
from trivet.dtypes import f32
from trivet.errors import InputError
from trivet.lora import Lora, adapt

EMBEDDING = "token_embd.weight"


def tied():
    """A linear of a block and one of the embedding."""
    x = graph.input("x", (3, 8), f32)
    h = ops.linear(x, graph.weight("blk.0.attn_q.weight", (8, 8), f32))
    return [ops.linear(h, graph.weight(EMBEDDING, (20, 8), f32))]


@pytest.mark.parametrize("target", ["*", "[!a]*", "*[a-z]*"])
def test_patterns_leave_the_embedding_out(target):
    assert not Lora(targets=[target]).takes(EMBEDDING)
    made = adapt(tied(), Lora(targets=[target]))
    assert {name.rpartition(".")[0] for name in made.shapes} == {"blk.0.attn_q.weight"}


@pytest.mark.parametrize("targets", [["token_embd"], ["token_*"], ["all", "token_embd"]])
def test_a_target_that_is_only_the_embedding_is_refused(targets):
    with pytest.raises(
        InputError, match=r"no linear layer matches token_.* \(the embedding is not adapted\)"
    ):
        adapt(tied(), Lora(targets=targets))
