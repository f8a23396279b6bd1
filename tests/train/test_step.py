"""A step's parts: packed examples, what is measured, dropout, and memory at a large vocabulary."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import small_model

from devices import DEVICES
from trivet import graph, lora, runtime
from trivet.dtypes import f32, i64
from trivet.graph import Graph
from trivet.lora import Lora
from trivet.train.data import pack

pytest.importorskip("torch")
pytest.importorskip("transformers")

import hf_oracle as oracle


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", ["llama", "mistral-window"])
def test_packed_examples_give_what_each_gives_alone(family, device, pairs):
    pair, backend = pairs(family), runtime.backend(device)
    sequences = oracle.examples(1, 19, 2, 40, 7)
    program = backend.compile(oracle.gradient_graph(pair.method()))
    parts = [program.run(oracle.tokens(pack(s)) | pair.parameters()) for s in (sequences, *zip(sequences))]
    whole, *alone = ({n: backend.to_numpy(a) for n, a in part.items()} for part in parts)
    for name, got in whole.items():
        assert oracle.distance(got, np.sum([part[name] for part in alone], axis=0)) < 3e-6, name


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_measured_is_the_loss_of_pytorch(device, pairs):
    pair = pairs()
    sequences = [oracle.examples(s, 11, 30) for s in (1, 2)]
    masked = oracle.examples(3, 20, share=0.0)
    total, targets = pair.trainer(device).evaluate([pack(s) for s in (*sequences, masked)])
    assert targets == sum(pack(s).trained for s in sequences)
    assert total == pytest.approx(sum(oracle.torch_loss(pair.theirs, s).item() for s in sequences), rel=1e-5)


# --- dropout ---------------------------------------------------------------------------------------------


def dropped(device, p, key, site, shape=(300, 400)):
    x, given = graph.input("x", shape, f32), graph.input("key", (2,), i64)
    program = runtime.backend(device).compile(Graph({"y": lora.dropout(x, p, given, site)}))
    return program.run({"x": np.ones(shape, np.float32), "key": np.array(key)})["y"]


@pytest.mark.parametrize("p", [0.05, 0.5, 0.9])
def test_dropout_has_its_mean_and_variance(p):
    y = dropped("cpu", p, (1, 2), 3).astype(np.float64)
    kept = np.float32(1 / (1 - p))
    assert set(np.unique(y)) == {0.0, kept}
    deviation = np.sqrt(p / (1 - p))  # of one element
    assert abs(y.mean() - 1) < 4 * deviation / np.sqrt(y.size)
    assert y.var() == pytest.approx(deviation**2, rel=0.03)
    for axis in (0, 1):  # no row, and no column, is special
        means = y.mean(axis)
        assert means.std() == pytest.approx(deviation / np.sqrt(y.shape[axis]), rel=0.15)


def test_a_mask_is_a_function_of_key_and_place():
    one = dropped("cpu", 0.5, (1, 2), 3)
    np.testing.assert_array_equal(dropped("cpu", 0.5, (1, 2), 3), one)
    np.testing.assert_array_equal(dropped("reference", 0.5, (1, 2), 3), one)
    for key, site in (((1, 3), 3), ((2, 2), 3), ((1, 2), 4)):
        assert 0.45 < (dropped("cpu", 0.5, key, site) == one).mean() < 0.55, "as unlike as chance"


def test_dropout_is_for_training_only(pairs):
    pair, batch = pairs(), pack(oracle.examples(1, 40))
    settings = Lora(4, 32.0, dropout=0.5)
    _, values = oracle.adapted(pair, settings)
    dropping, plain = (pair.trainer("cpu", s, parameters=values) for s in (settings, Lora(4, 32.0)))
    before = dropping.evaluate([batch])
    assert before == dropping.evaluate([batch]) == plain.evaluate([batch])
    steps = [dropping.step([batch], 1e-9).loss for _ in range(3)]
    assert len({*steps, before[0] / batch.trained}) == 4, "each step has a mask of its own"
    again = pair.trainer("cpu", settings, parameters=values)
    assert [again.step([batch], 1e-9).loss for _ in range(3)] == steps
    other = pair.trainer("cpu", settings, parameters=values, seed=1)
    assert other.step([batch], 1e-9).loss not in steps


# --- memory ----------------------------------------------------------------------------------------------

_PEAK = """
def high():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) / 1024

before = high()
made = trainer(Lora(4, 8.0) if sys.argv[2] == "lora" else None)
made.step([pack([example(1, 1024)])], 1e-3)
made.evaluate([pack([example(2, 1024)])])
print(high() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from Linux's /proc")
@pytest.mark.parametrize(("method", "most"), [("lora", 200), ("full", 400)])
def test_logits_of_a_quarter_million_classes_are_never_held(method, most, tmp_path):
    """They are 1 GiB here. Parameters and moments of `full` are 96 MiB, and its gradient 32."""
    path = small_model.write(tmp_path / "m.gguf", vocab=2**18, width=32, hidden=32, layers=1)
    child = subprocess.run(
        [sys.executable, "-c", small_model.CHILD + _PEAK, str(path), method],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    assert float(child.stdout) < most
