"""The bound of a serving plan, counted by hand."""

from dataclasses import dataclass

import pytest

import tiny_model
from trivet import models
from trivet.dtypes import f16, f32
from trivet.generate.bound import serving_work
from trivet.generate.engine import serving_graph
from trivet.models.checkpoint import open_checkpoint


@dataclass
class Machine:
    read_bytes: float = 1e9
    f32: float = 1e9
    bf16: float = 1e9
    i8: float = 1e9


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return open_checkpoint(tiny_model.write(tmp_path_factory.mktemp("bound") / "tiny.gguf"))


def test_work_is_what_the_shapes_say(checkpoint):
    serving = serving_graph(models.build(checkpoint), f16)
    parameters = sum(int(entry.nbytes) // 4 for entry in checkpoint.tensors.values())
    per_token = 2 * 2 * 2 * 16 * 2  # layers, keys and values, heads, head size, bytes
    head = len(tiny_model.TOKENS) * tiny_model.WIDTH
    layers = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 96)

    one = serving_work(serving, 1, past=10)
    assert one.read == 4 * parameters + 11 * per_token  # the embedding is the head
    assert one.operations["f32"] == 2 * (layers + head) + 2 * (4 * 11 * 64)

    many = serving_work(serving, 20, past=0, rows=1)
    assert many.read == 4 * parameters + 20 * per_token
    assert many.operations["f32"] == 2 * (20 * layers + head) + 2 * (4 * 210 * 64)


def test_seconds_are_those_of_what_takes_longer(checkpoint):
    work = serving_work(serving_graph(models.build(checkpoint), f32), 1, past=0)
    assert work.seconds(Machine()) == work.read / 1e9
    assert work.seconds(Machine(read_bytes=1e12)) == pytest.approx(work.operations["f32"] / 1e9)
