"""What keys and values are kept in."""

import numpy as np
import pytest

import tiny_model
import trivet as tv
from devices import DEVICES
from trivet.errors import InputError
from trivet.export import export
from trivet.formats.gguf import GGUFFile
from trivet.generate.describe import describe
from trivet.generate.engine import Feed
from trivet.plan import decode

IDS = [(7 * i) % 250 for i in range(100)]  # more than a page
#: largest error of a logit of the tiny model
ERROR = {"f32": 1e-4, "f16": 0.02, "bf16": 0.2, "q8_0": 0.6}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_model.write(tmp_path_factory.mktemp("kv") / "m.gguf", tiny_model.WIDE_HEADS)


@pytest.fixture(scope="module")
def exact(path):
    return tv.load(path, "reference").logits(IDS)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kv", ERROR)
def test_close_to_exact(path, exact, device, kv):
    got = tv.load(path, device, kv=kv).logits(IDS)
    error = np.abs(got - exact).max()
    assert error < ERROR[kv]
    assert error > 0 or (device, kv) == ("reference", "f32")


@pytest.mark.parametrize("device", DEVICES)
def test_no_ids_have_no_logits(path, device):
    assert tv.load(path, device).logits([]).shape == (0, len(tiny_model.TOKENS))


def test_defaults(path, exact):
    assert np.array_equal(tv.load(path, "reference", kv="f32").logits(IDS), exact)
    default, half = (tv.load(path, "cpu", kv=kv).logits(IDS) for kv in (None, "f16"))
    assert np.array_equal(default, half)


@pytest.mark.parametrize("kv", ERROR)
def test_prefill_equals_decode(path, kv):
    m = tv.load(path, "cpu", kv=kv)
    session = m.session()
    for i, want in zip(IDS, m.logits(IDS), strict=True):
        assert np.array_equal(m.engine.forward(session, [i], [0])[0], want)


@pytest.mark.parametrize("kv", ERROR)
def test_parts_threads_and_batches_change_nothing(path, kv):
    want = tv.load(path, "cpu", kv=kv, threads=1).logits(IDS)
    m = tv.load(path, "cpu", kv=kv, threads=3)
    for cut in (1, 15, 64, 65, 99):
        first, other = m.session(), m.session()
        start = m.engine.step([Feed(first, IDS[:cut], range(cut)), Feed(other, IDS[5:70], [])])[0]
        rest = m.engine.step([Feed(other, [3], []), Feed(first.fork(), IDS[cut:], range(len(IDS) - cut))])[1]
        assert np.array_equal(np.concatenate([start, rest]), want)


@pytest.mark.parametrize("kv", ["f64", "", 16])
def test_unknown(path, tmp_path, kv):
    with pytest.raises(InputError, match=r"\[load\] kv is .*; known: f32, f16, bf16, q8_0"):
        tv.load(path, "cpu", kv=kv)
    with pytest.raises(InputError, match=r"\[load\] kv is .*; known: f32, f16, bf16, q8_0"):
        export(path, tmp_path / "out.gguf", kv=kv)


def test_blocks_and_head_sizes(tmp_path):
    narrow = tiny_model.write(tmp_path / "m.gguf")
    message = r"\[load\] kv q8_0 takes heads whose size divides by 32; this model's head size is 16"
    for device in ("cpu", "reference"):
        with pytest.raises(InputError, match=message):
            tv.load(narrow, device, kv="q8_0")
    with pytest.raises(InputError, match=message):
        export(narrow, tmp_path / "out.gguf", kv="q8_0")
    assert message.replace("\\", "") in describe(narrow, kv="q8_0")["problem"]


def test_memory(path):
    memory = {kv: describe(path, 100, kv)["memory"] for kv in (None, *ERROR)}
    assert memory[None] == memory["f16"]
    assert {kv: memory[kv]["cache"] for kv in ERROR} == {
        kv: 2 * 2 * 128 * 32 * bits // 8
        for kv, bits in {"f32": 32, "f16": 16, "bf16": 16, "q8_0": 8.5}.items()
    }
    assert memory["q8_0"]["kv"] == "q8_0"
    with pytest.raises(InputError, match=r"\[load\] kv is 'f8'; known"):
        describe(path, kv="f8")


def test_export_decides(path, tmp_path):
    def pools(name, **options):
        data = GGUFFile.open(export(path, tmp_path / name, **options).path).metadata["trivet.plan.serve"]
        plan = decode(bytes(data))
        return {v.dtype.name for v in plan.values if v.kind == "state"}

    assert pools("default.gguf") == {"f16"}
    for kv in ERROR:
        assert pools(f"{kv}.gguf", kv=kv) == {kv}
