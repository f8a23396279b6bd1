"""What a model is used for beside its logits, for every architecture: a file with its plan inside, training,
adapters in files of others and merged into both kinds of files, blocks computed anew, embeddings."""

import json

import numpy as np
import pytest

import trivet as tv
from devices import DEVICES
from trivet import dtypes, graph, models, ops
from trivet.autograd import grad
from trivet.backends import native
from trivet.export import export
from trivet.generate.native import serving_plan
from trivet.graph import Dim, Graph
from trivet.merging import merge
from trivet.models.checkpoint import open_checkpoint
from trivet.nn.attention import packed
from trivet.train.checkpointing import block_inputs, checkpointed
from trivet.train.step import losses

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import variants  # noqa: E402
from variants import near  # noqa: E402

#: a variant of each
NAMES = [
    "llama-bias", "qwen2", "qwen3", "smollm3", "granite", "olmo3", "phi3-partial", "stablelm-parallel",
    "gptneox", "gemma2", "gemma3", "mixtral", "qwen3moe-mixed",
]  # fmt: skip
ROWS = [{"prompt": f"{i} hell", "completion": f" he{i}"} for i in range(6)]


@pytest.fixture(scope="module", params=NAMES)
def case(request, tmp_path_factory):
    return variants.make(tmp_path_factory.mktemp(request.param), request.param)


def test_all_are_here():
    types = [variants.CASES[name][0].lower() for name in NAMES]
    names = {"gptneox": "gpt_neox", "gemma3": "gemma3_text", "qwen3moe": "qwen3_moe"}
    assert {models.MODEL_TYPES[names.get(kind, kind)] for kind in types} == set(
        models.ARCHITECTURES.values()
    ) - {"gpt2"}


def test_an_exported_file_is_the_same_model(case, tmp_path):
    made = export(case.file, tmp_path / "out.gguf")
    checkpoint = open_checkpoint(made.path)
    plan = serving_plan(models.build(checkpoint), checkpoint.architecture, dtypes.f16)
    assert bytes(checkpoint.metadata["trivet.plan.serve"]) == plan
    assert np.array_equal(tv.load(made.path).logits(case.ids), tv.load(case.file).logits(case.ids))


def test_an_adapter_is_trained_and_merged(case, tmp_path):
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    run = tv.finetune(
        case.file, tmp_path / "data.jsonl", out=tmp_path / "run", method="lora", rank=2, epochs=2, lr=0.05
    )
    file, folder = tmp_path / "merged.gguf", tmp_path / "merged"
    want = tv.load(case.file, kv="f32", adapter=run.result).logits(case.ids)
    assert not near(want, case.logits, 0.05)
    merge(case.file, run.result, file)
    merge(case.file, run.result, folder)
    assert near(tv.load(file, kv="f32").logits(case.ids), want)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    with torch.no_grad():
        assert near(theirs(torch.tensor(case.ids)[None]).logits[0].numpy(), want)


def test_blocks_computed_anew_give_the_same_gradients(case):
    checkpoint = open_checkpoint(case.file)
    given = {n: graph.input(n, (Dim("T"),), dtypes.i32) for n in ("ids", "positions", "starts", "targets")}
    logits = models.build(checkpoint)(given["ids"], given["positions"], packed(given["starts"]))
    loss = ops.sum(losses(logits, given["targets"]))
    weights = {n.attrs["name"]: n for n in graph.walk([loss]) if n.op == "weight"}
    assert len(block_inputs(loss)) == models.build(checkpoint).config.layers + 1
    assert len(weights) == len([n for n in checkpoint.tensors if not n.startswith("rope_")])
    arrays = {"ids": case.ids, "positions": range(150), "starts": [0] * 150, "targets": case.ids[::-1]}
    batch = {n: np.array(v, np.int32) for n, v in arrays.items()}
    found = []
    for of in (grad, checkpointed):
        slopes = of(loss, list(weights.values()))
        program = native.BACKEND.compile(
            Graph(dict(zip(weights, slopes, strict=True))), weights=checkpoint.load
        )
        found.append({n: native.BACKEND.to_numpy(a) for n, a in program.run(batch).items()})
    for name in weights:
        assert np.array_equal(found[0][name], found[1][name]), name
        assert np.abs(found[0][name]).max() > 0, name


@pytest.mark.parametrize("device", DEVICES)
def test_embeddings_are_the_last_hidden_states(case, device):
    model = tv.load(case.file, device)
    assert near(model.embed([case.ids], pooling="last")[0], case.hidden[-1])
    assert near(model.embed([case.ids], pooling="mean")[0], case.hidden.mean(axis=0))
