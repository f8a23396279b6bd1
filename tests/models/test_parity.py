"""Tiny random transformers models of every architecture: our logits against theirs, in float32, from folders
and from GGUF files, which llama.cpp reads, too, and which become folders again that transformers reads."""

import numpy as np
import pytest

import trivet as tv
from devices import DEVICES
from trivet import graph, hf_folder, models, runtime
from trivet.dtypes import i32
from trivet.formats.gguf import TensorSource
from trivet.graph import Graph
from trivet.models.checkpoint import open_checkpoint
from trivet.nn.attention import whole_sequence

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import variants  # noqa: E402
from variants import LENGTH, near  # noqa: E402


@pytest.fixture(
    scope="module",
    params=[pytest.param(n, marks=[pytest.mark.slow] * (n in variants.SLOW)) for n in variants.CASES],
)
def case(request, tmp_path_factory):
    return variants.make(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.parametrize("device", DEVICES)
def test_logits(case, device):
    assert near(tv.load(case.folder, device=device, kv="f32").logits(case.ids), case.logits)
    assert near(tv.load(case.file, device=device, kv="f32").logits(case.ids), case.logits)


def test_token_by_token_equals_at_once(case):
    model = tv.load(case.file, device="cpu")
    session = model.session()
    rows = [model.engine.forward(session, [i], [0])[0] for i in case.ids[:80]]
    assert np.array_equal(np.stack(rows), model.logits(case.ids[:80]))


def test_a_whole_sequence_equals_pages(case):
    checkpoint = open_checkpoint(case.file)
    ids, positions = (graph.input(name, (2, LENGTH), i32) for name in ("ids", "positions"))
    logits = models.build(checkpoint)(ids, positions, whole_sequence)
    backend = runtime.backend("cpu")
    program = backend.compile(Graph({"logits": logits}), weights=checkpoint.load)
    both = np.array([case.ids, case.ids[::-1]], np.int32)
    given = {"ids": both, "positions": np.tile(np.arange(LENGTH, dtype=np.int32), (2, 1))}
    assert near(backend.to_numpy(program.run(given)["logits"])[0], case.logits)


def plain(metadata):
    """What is no tokenizer's, as numbers that were float32."""
    return {
        k: f"{v:.6g}" if isinstance(v, float | np.floating) else np.asarray(v).tolist()
        for k, v in metadata.items()
        if not k.startswith("tokenizer.")
    }


def test_a_file_becomes_a_folder_that_transformers_reads(case, tmp_path):
    base = open_checkpoint(case.file)
    sources = {n: TensorSource(e.dtype, e.shape, e.load) for n, e in base.tensors.items()}
    hf_folder.write("merge", tmp_path / "made", base, sources, {}, "")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "made", dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        assert near(theirs(torch.tensor(case.ids)[None]).logits[0].numpy(), case.logits)
    again = open_checkpoint(tmp_path / "made")
    assert plain(again.metadata) == plain(base.metadata)
    assert {n: e.shape for n, e in again.tensors.items()} == {n: e.shape for n, e in base.tensors.items()}


@pytest.mark.parametrize("case", variants.IN_LLAMA_CPP, indirect=True)
def test_llama_cpp_gives_the_same_logits(case):
    llama_cpp = pytest.importorskip("llama_cpp")
    theirs = llama_cpp.Llama(
        str(case.file), n_ctx=LENGTH, logits_all=True, verbose=False, type_k=0, type_v=0, n_threads=1
    )
    theirs.eval(case.ids)
    assert near(np.array(theirs.scores[:LENGTH]), case.logits, 2e-3)


def test_phi3s_divisors_are_those_of_the_context(tmp_path):
    """Up to the original context transformers takes the short ones, as we do if no more is asked for."""
    made = variants.make(tmp_path, "phi3-long", 64)
    for model in (made.folder, made.file):
        assert near(tv.load(model, context=64, kv="f32").logits(made.ids), made.logits)
        assert not near(tv.load(model, kv="f32").logits(made.ids), made.logits, 1e-2)
