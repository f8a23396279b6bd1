"""A model does not know how it attends: over whole sequences, its logits are those over pages of a cache."""

import numpy as np

import tiny_model
from trivet import graph, models, runtime
from trivet.dtypes import i32
from trivet.generate.model import Model
from trivet.graph import Graph
from trivet.models.checkpoint import open_checkpoint
from trivet.nn.attention import whole_sequence


def test_a_batch_of_whole_sequences_gives_what_the_cache_gives(tmp_path):
    checkpoint = open_checkpoint(tiny_model.write(tmp_path / "tiny.gguf"))
    ids = np.random.default_rng(1).integers(0, len(tiny_model.TOKENS), (2, 21)).astype(np.int32)
    inputs = {"ids": ids, "positions": np.broadcast_to(np.arange(21, dtype=np.int32), ids.shape).copy()}
    leaves = [graph.input(name, ids.shape, i32) for name in inputs]
    logits = models.build(checkpoint)(*leaves, whole_sequence)
    program = runtime.backend("reference").compile(Graph({"logits": logits}), weights=checkpoint.load)
    batch = program.run(inputs)["logits"]
    assert batch.shape == (2, 21, len(tiny_model.TOKENS))
    cached = Model(checkpoint, "reference", kv="f32")
    for got, row in zip(batch, ids, strict=True):
        np.testing.assert_allclose(got, cached.logits(row.tolist()), atol=2e-5)
