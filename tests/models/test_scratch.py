"""Models from scratch: they have the tensors their definitions want, and seeded first values."""

import numpy as np
import pytest

from trivet import models
from trivet.errors import InputError
from trivet.models.scratch import Sizes, checkpoint
from trivet.text import train_bpe

WORDS = train_bpe.metadata([])
SMALL = {"layers": 2, "width": 32, "heads": 4, "context": 16}


@pytest.mark.parametrize(
    "sizes",
    [Sizes(style="gpt2", **SMALL), Sizes(style="llama", **SMALL), Sizes(style="llama", kv_heads=2, **SMALL)],
)
def test_a_model_is_built_from_every_tensor_and_no_other(sizes, tmp_path):
    made = checkpoint(sizes, WORDS, 0, tmp_path)
    asked = set()
    find = made.find
    made.find = lambda name, shape: (asked.add(name), find(name, shape))[1]
    model = models.build(made)
    assert set(made.tensors) == asked & set(made.tensors)
    config = model.config
    assert (config.layers, config.width, config.heads, config.context) == (2, 32, 4, 16)
    assert (config.vocab, config.kv_heads, config.hidden) == (257, sizes.kv_heads or 4, sizes.mlp)
    assert sizes.mlp == (128 if sizes.style == "gpt2" else 96)


@pytest.mark.parametrize("style", ["gpt2", "llama"])
def test_first_values(style, tmp_path):
    sizes = Sizes(style=style, layers=8, width=256, heads=4, context=64)
    values = {name: e.load() for name, e in checkpoint(sizes, WORDS, 3, tmp_path).tensors.items()}
    for name, array in values.items():
        assert array.dtype == np.float32
        if array.ndim == 1:
            assert (array == (0 if name.endswith(".bias") else 1)).all()
            continue
        deviation = 0.02 / 4 if name.endswith(("attn_output.weight", "ffn_down.weight")) else 0.02
        assert array.std() == pytest.approx(deviation, rel=0.05)
        assert abs(array.mean()) < 5 * deviation / array.size**0.5
    matrices = [a.tobytes() for a in values.values() if a.ndim == 2]
    assert len(set(matrices)) == len(matrices)
    deeper = Sizes(style=style, layers=9, width=256, heads=4, context=64)
    again = checkpoint(deeper, WORDS, 3, tmp_path).tensors
    assert np.array_equal(again["blk.7.ffn_up.weight"].load(), values["blk.7.ffn_up.weight"])
    other = checkpoint(sizes, WORDS, 4, tmp_path).tensors
    assert not np.array_equal(other["blk.7.ffn_up.weight"].load(), values["blk.7.ffn_up.weight"])


@pytest.mark.parametrize(
    "change",
    [
        {"style": "bert"}, {"layers": 0}, {"width": 33}, {"heads": 5}, {"heads": 0}, {"kv_heads": 3},
        {"style": "gpt2", "kv_heads": 2}, {"hidden": -1}, {"context": 1}, {"layers": 2.0}, {"heads": 32},
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit(change):
    with pytest.raises(InputError):
        Sizes(**({"style": "llama"} | SMALL | change))
