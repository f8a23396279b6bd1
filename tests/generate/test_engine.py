"""What keys and values are kept in."""

import numpy as np
import pytest

import tiny_model
import trivet as tv
from trivet.errors import InputError
from trivet.export import export
from trivet.formats.gguf import GGUFFile
from trivet.plan import decode

IDS = [(7 * i) % 250 for i in range(100)]  # more than a page
#: largest error of a logit of the tiny model
ERROR = {"f32": 1e-4, "f16": 0.02, "bf16": 0.2}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_model.write(tmp_path_factory.mktemp("kv") / "m.gguf")


@pytest.fixture(scope="module")
def exact(path):
    return tv.load(path, "reference").logits(IDS)


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("kv", ERROR)
def test_close_to_exact(path, exact, device, kv):
    got = tv.load(path, device, kv=kv).logits(IDS)
    error = np.abs(got - exact).max()
    assert error < ERROR[kv]
    assert error > 0 or (device, kv) == ("reference", "f32")


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


@pytest.mark.parametrize("kv", ["f64", "", 16])
def test_unknown(path, tmp_path, kv):
    with pytest.raises(InputError, match=r"\[load\] kv is .*; known: f32, f16, bf16"):
        tv.load(path, "cpu", kv=kv)
    with pytest.raises(InputError, match=r"\[load\] kv is .*; known: f32, f16, bf16"):
        export(path, tmp_path / "out.gguf", kv=kv)


def test_export_decides(path, tmp_path):
    def pools(name, **options):
        data = GGUFFile.open(export(path, tmp_path / name, **options).path).metadata["trivet.plan.serve"]
        plan = decode(bytes(data))
        return {v.dtype.name for v in plan.values if v.kind == "state"}

    assert pools("default.gguf") == {"f16"}
    for kv in ERROR:
        assert pools(f"{kv}.gguf", kv=kv) == {kv}
