"""Checkpoints as GGUF files: values that a type cannot hold, memory, and what a failure leaves."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import tiny_model
from trivet import dtypes, packing
from trivet.blocks import quantize
from trivet.errors import FileError, NonFiniteError
from trivet.formats.gguf import GGUFFile
from trivet.models.checkpoint import open_checkpoint

UP = "blk.1.ffn_up.weight"


def written(
    tmp_path: Path, kind: dtypes.DType, weights: dict | None = None
) -> tuple[packing.Written, GGUFFile]:
    source = open_checkpoint(tiny_model.write(tmp_path / "source.gguf", weights=weights))
    kinds = {n: kind if len(e.shape) == 2 else dtypes.f32 for n, e in source.tensors.items()}
    done = packing.write("quantize", tmp_path / "out.gguf", source, kinds, packing.carried(source))
    return done, GGUFFile.open(tmp_path / "out.gguf")


def test_tensors_and_metadata_are_carried(tmp_path: Path) -> None:
    done, out = written(tmp_path, dtypes.q5_1)
    source = open_checkpoint(tmp_path / "source.gguf")
    assert list(out.tensors) == list(source.tensors) == [t.name for t in done.tensors]
    for name, entry in source.tensors.items():
        kind = dtypes.q5_1 if len(entry.shape) == 2 else dtypes.f32
        assert out.tensors[name].dtype is kind
        assert np.array_equal(out.data(name), quantize(entry.values(), kind).reshape(-1))
    assert {k: out.encoded(k) for k in out.metadata} == {k: source.gguf.encoded(k) for k in source.metadata}
    by_name = {t.name: t for t in done.tensors}
    error = np.linalg.norm(out.array(UP) - source.tensors[UP].values())
    assert by_name[UP].error == pytest.approx(error / np.linalg.norm(source.tensors[UP].values()), rel=1e-5)
    assert by_name["output_norm.weight"].error == 0


@pytest.mark.parametrize("scale", [1e-11, 1e30, 3.3999e38])
def test_what_a_type_cannot_hold_is_bf16_or_f32(tmp_path: Path, scale: float) -> None:
    values = (tiny_model.tensors()[UP] / np.abs(tiny_model.tensors()[UP]).max() * scale).astype(np.float32)
    done, out = written(tmp_path, dtypes.q4_0, {UP: values})
    assert done.unfit == {UP: dtypes.q4_0}
    want = dtypes.f32 if scale > 1e38 else dtypes.bf16
    assert out.tensors[UP].dtype is want
    assert np.allclose(out.array(UP), values, rtol=2**-8)
    assert sum(t.after is dtypes.q4_0 for t in done.tensors) == 14


def test_zeros_stay_zeros(tmp_path: Path) -> None:
    done, out = written(tmp_path, dtypes.q4_1, {UP: np.zeros((96, 64), np.float32)})
    assert not out.array(UP).any()
    assert not done.unfit


@pytest.mark.parametrize("kind", [dtypes.q4_0, dtypes.f16])
def test_f64_is_packed_as_f32_is(tmp_path: Path, kind: dtypes.DType) -> None:
    values = tiny_model.tensors()[UP].astype(np.float64)
    _, out = written(tmp_path, kind, {UP: values})
    assert np.array_equal(out.data(UP), quantize(values.astype(np.float32), kind).reshape(-1))


def test_f64_that_is_kept_is_finite(tmp_path: Path) -> None:
    values = np.full((96, 64), np.nan)
    source = open_checkpoint(tiny_model.write(tmp_path / "source.gguf", weights={UP: values}))
    kinds = {name: entry.dtype for name, entry in source.tensors.items()}
    with pytest.raises(NonFiniteError, match=f"{UP}': 6144 of its values"):
        packing.write("convert", tmp_path / "out.gguf", source, kinds, {})


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("name", [UP, "output_norm.weight"])
def test_what_is_not_finite_is_refused_by_name(tmp_path: Path, name: str, wrong: float) -> None:
    values = tiny_model.tensors()[name].copy()
    values.reshape(-1)[70 % values.size] = wrong
    message = rf"tensor '{name}': 1 of its values are not finite, the first, {wrong}, in row \d, column 6"
    with pytest.raises(NonFiniteError, match=message):
        written(tmp_path, dtypes.q8_0, {name: values})
    assert [p.name for p in tmp_path.iterdir()] == ["source.gguf"]


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    source = tiny_model.write(tmp_path / "source.gguf")
    out = tmp_path / "out.gguf"
    script = f"""
        import resource
        from trivet import packing, mixes, errors
        from trivet.models.checkpoint import open_checkpoint
        from pathlib import Path
        source = open_checkpoint(Path({str(source)!r}))
        import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
        try:
            packing.write('quantize', {str(out)!r}, source, mixes.kinds(source, "q8_0"), {{}})
        except errors.FileError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    assert "File too large" in done.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["source.gguf"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    source = open_checkpoint(tiny_model.write(tmp_path / "source.gguf"))
    with pytest.raises(FileError, match="No such file"):
        packing.write(
            "quantize", tmp_path / "no/out.gguf", source, dict.fromkeys(source.tensors, dtypes.f32), {}
        )


def test_memory_stays_near_one_tensor(tmp_path: Path) -> None:
    layers = 24
    made = {f"blk.{i}.ffn_up.weight": np.full((1024, 1024), 0.25, np.float32) for i in range(layers)}
    from trivet.formats.gguf import write_gguf

    write_gguf(tmp_path / "big.gguf", {"general.architecture": "llama"}, made)  # 96 MiB
    out = tmp_path / "out.gguf"
    script = f"""
        import resource
        from pathlib import Path
        from trivet import packing, dtypes
        from trivet.models.checkpoint import open_checkpoint
        def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        source = open_checkpoint(Path({str(tmp_path / "big.gguf")!r}))
        def write(names, kind):
            source.tensors = {{n: e for n, e in everything.items() if n in names}}
            packing.write('quantize', {str(out)!r}, source, {{n: kind for n in names}}, {{}})
        everything = source.tensors
        write(list(everything)[:1], dtypes.f32)  # one tensor of 4 MiB, read and written
        before = peak()
        write(list(everything), dtypes.f32)
        print(peak() - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    unit = 1024 if sys.platform != "darwin" else 1
    assert int(done.stdout) * unit < 16 << 20  # of 96 MiB read and as many written
