"""Adapters out of files and into them: peft computes what we compute, and reads what we write."""

import json

import numpy as np
import pytest

import tiny_adapter
import tiny_model
import trivet as tv
from trivet.adapter import Adapter, gathered, stacked
from trivet.errors import FileError, InputError, ModelError
from trivet.models.checkpoint import open_checkpoint

CONFIG = {
    "vocab_size": 131, "hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "initializer_range": 0.3, "tie_word_embeddings": False,
}  # fmt: skip
IDS = np.random.default_rng(5).integers(0, 131, 40).tolist()
CASES = {
    "all": {"target_modules": "all-linear", "r": 4, "lora_alpha": 6},
    "rslora": {"target_modules": ["q_proj", "v_proj"], "r": 9, "lora_alpha": 6, "use_rslora": True},
    "regex": {"target_modules": r".*\.(k|o)_proj", "r": 4, "lora_alpha": 4},
    "layers": {
        "target_modules": ["q_proj", "down_proj"],
        "layers_to_transform": [1],
        "r": 4,
        "lora_alpha": 8,
    },
    "patterns": {
        "target_modules": ["q_proj", "k_proj", "up_proj", "lm_head"],
        "r": 4,
        "lora_alpha": 8,
        "rank_pattern": {"k_proj": 2, r"layers\.[01]\.mlp.up_proj": 3, "^model.layers.2.self_attn.q_proj": 5},
        "alpha_pattern": {"lm_head": 3, "model.layers.1.self_attn.q_proj": 16},
    },
}


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def peft():
    return pytest.importorskip("peft")


@pytest.fixture(scope="module")
def llama(torch, tmp_path_factory):
    """The folder of a saved model."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("llama")
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).save_pretrained(folder)
    return folder


def theirs(torch, llama, wrap):
    """The logits of a model that `wrap` makes of the base."""
    import transformers

    model = wrap(transformers.LlamaForCausalLM.from_pretrained(llama)).eval()
    with torch.no_grad():
        return model(torch.tensor(IDS)[None]).logits[0].numpy()


@pytest.mark.parametrize("case", CASES)
def test_peft_and_back(torch, peft, llama, case, tmp_path):
    config = peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.1, **CASES[case])
    torch.manual_seed(4)

    def random(base):
        model = peft.get_peft_model(base, config)
        with torch.no_grad():
            for name, p in model.named_parameters():
                if "lora_" in name:
                    p.copy_(torch.randn_like(p) * 0.3)
        model.save_pretrained(tmp_path / "peft", save_embedding_layers=False)
        return model

    want = theirs(torch, llama, random)
    opened = Adapter.open(tmp_path / "peft", llama)
    assert opened.lora.dropout == 0.1
    for device in ("cpu", "reference"):
        got = tv.load(llama, device, kv="f32", adapter=opened).logits(IDS)
        assert np.abs(got - want).max() < 2e-4 * np.abs(want).max()
    assert np.abs(tv.load(llama, "cpu", kv="f32").logits(IDS) - want).max() > 0.1

    opened.save(tmp_path / "back")
    again = theirs(torch, llama, lambda base: peft.PeftModel.from_pretrained(base, tmp_path / "back"))
    assert np.abs(again - want).max() < 1e-5 * np.abs(want).max()


def test_peft_reads_the_very_modules(torch, peft, llama, tmp_path):
    """It makes no module of its own beside those in the file."""
    import transformers

    base = open_checkpoint(llama)
    tiny_adapter.make(base, targets=["blk.1.attn_q", "blk.2.ffn_up"], rslora=True).save(tmp_path / "a")
    model = peft.PeftModel.from_pretrained(
        transformers.LlamaForCausalLM.from_pretrained(llama), tmp_path / "a"
    )
    made = {n for n, _ in model.named_parameters() if "lora_A" in n}
    assert {n.removeprefix("base_model.model.model.").split(".lora_A")[0] for n in made} == {
        "layers.1.self_attn.q_proj", "layers.2.mlp.up_proj",
    }  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return open_checkpoint(tiny_model.write(tmp_path_factory.mktemp("base") / "m.gguf"))


SETTINGS = {
    "plain": {},
    "rslora": {"rslora": True, "rank": 5},
    "some": {"targets": ["q_proj", "ffn_down"], "alpha": 3.5, "dropout": 0.25},
    "patterns": {"targets": ["blk.1.*"]},
}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("format", ["peft", "mlx", "gguf"])
def test_every_format_there_and_back(base, tmp_path, settings, format):
    made = tiny_adapter.make(base, **SETTINGS[settings])
    found = Adapter.open(made.save(tmp_path / f"orders.{format}", format))
    assert set(found.pairs) == set(made.pairs)
    for weight, pair in made.pairs.items():
        assert found.scale(weight) == pytest.approx(made.scale(weight), rel=1e-6)
        assert np.array_equal(found.pairs[weight].a, pair.a)
        assert np.allclose(found.pairs[weight].b, pair.b, rtol=1e-6, atol=0)
    assert found.lora.rank == made.lora.rank
    assert {w for w in base.tensors if found.lora.takes(w)} == set(made.pairs)
    assert found.facts["trivet.data"] == "orders.jsonl, 300 rows"
    assert found.facts["trivet.base.sha256"] == base.sha256
    if format == "peft":
        assert (found.lora.rslora, found.lora.dropout) == (made.lora.rslora, made.lora.dropout)
        assert found.sha256 == made.sha256


@pytest.mark.parametrize("format", ["peft", "mlx", "gguf"])
def test_a_base_that_does_not_count_its_key_heads(tmp_path, format):
    """They are as many as the heads then."""
    weights = tiny_model.tensors()
    wide = {n: np.concatenate([w, w]) for n, w in weights.items() if n.split(".")[-2] in ("attn_k", "attn_v")}
    path = tiny_model.write(tmp_path / "m.gguf", {"llama.attention.head_count_kv": None}, wide)
    made = tiny_adapter.make(open_checkpoint(path))
    again = Adapter.open(made.save(tmp_path / "a", format), path)
    assert {w: p.b.tobytes() for w, p in again.pairs.items()} == {
        w: p.b.tobytes() for w, p in made.pairs.items()
    }


def test_unlike_scales_in_formats_with_one(base, tmp_path):
    """What one alpha or scale cannot say goes into B."""
    folder = tiny_adapter.make(base).save(tmp_path / "a")
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"alpha_pattern": {"q_proj": 10.0}}))
    made = Adapter.open(folder)
    assert made.scale("blk.0.attn_q.weight") == 5 * made.scale("blk.0.attn_k.weight")
    for format in ("mlx", "gguf"):
        found = Adapter.open(made.save(tmp_path / f"b.{format}", format))
        for weight, pair in made.pairs.items():
            want = made.scale(weight) * pair.b @ pair.a
            got = found.scale(weight) * found.pairs[weight].b @ found.pairs[weight].a
            assert np.allclose(got, want, rtol=1e-5, atol=1e-7)


def test_mlx_layout(base, tmp_path):
    """lora_a [K, rank] and lora_b [rank, N] by names within a layer, with one scale."""
    from trivet.formats.safetensors import SafetensorsFile

    made = tiny_adapter.make(base, targets=["ffn_down"])
    folder = made.save(tmp_path / "mlx", "mlx")
    file = SafetensorsFile.open(folder / "adapters.safetensors")
    pair = made.pairs["blk.0.ffn_down.weight"]
    assert np.array_equal(file.array("model.layers.0.mlp.down_proj.lora_a"), pair.a.T)
    assert np.array_equal(file.array("model.layers.0.mlp.down_proj.lora_b"), pair.b.T)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["fine_tune_type"] == "lora"
    assert config["lora_parameters"] == {"rank": 4, "scale": 0.5, "dropout": 0.0, "keys": ["mlp.down_proj"]}


def test_the_card_says_how_to_use_it(base, tmp_path):
    folder = tiny_adapter.make(base).save(tmp_path / "my adapter")
    card = (folder / "README.md").read_text()
    for line in (
        f"trivet run {base.path} \"...\" --adapter '{folder}'",
        "| data | orders.jsonl, 300 rows |",
        f"| base sha256 | {base.sha256} |",
        "| rank | 4 |",
        'library_name: "peft"',
    ):
        assert line in card


def test_the_model_it_names_may_be_gone(base, tmp_path):
    moved = tmp_path / "moved.gguf"
    moved.write_bytes(base.path.read_bytes())
    folder = tiny_adapter.make(open_checkpoint(moved)).save(tmp_path / "a")
    assert Adapter.open(folder).base.path == moved
    moved.unlink()
    with pytest.raises(FileError, match=r"names the model '.*moved.gguf', which is not here"):
        Adapter.open(folder)
    assert Adapter.open(folder, base.path).parameters == Adapter.open(folder, base).parameters == 7424


def test_another_base(base, llama):
    made = tiny_adapter.make(base)
    with pytest.raises(ModelError, match=r"in llama\d it is"):
        gathered(made, open_checkpoint(llama))


def test_sums(base):
    one, two = tiny_adapter.make(base), tiny_adapter.make(base, rank=3, seed=1, targets=["attn_q"])
    pairs = stacked(gathered([one, (two, -0.5)], base))
    a, b = pairs["blk.0.attn_q.weight"]
    assert (a.shape, b.shape) == ((7, 64), (64, 7))
    want = sum(
        s
        * m.scale("blk.0.attn_q.weight")
        * m.pairs["blk.0.attn_q.weight"].b
        @ m.pairs["blk.0.attn_q.weight"].a
        for m, s in ((one, 1.0), (two, -0.5))
    )
    assert np.allclose(b @ a, want, atol=1e-6)
    assert pairs["blk.0.attn_k.weight"][0].shape == (4, 64)


@pytest.mark.parametrize(
    "given",
    [3, [3], [("x", 1.0, 2.0)], [("x", float("nan"))], [("x", True)], "", [("x", 1e9)]],
)
def test_refused(base, given):
    with pytest.raises(InputError, match=r"\[adapter\]"):
        gathered(given, base)


def test_unknown_format(base, tmp_path):
    with pytest.raises(InputError, match="known: peft, mlx, gguf"):
        tiny_adapter.make(base).save(tmp_path / "x", "pickle")


def test_llama_cpp_takes_the_file(tmp_path):
    """It scales by what stands in the file, times what it is told."""
    llama_cpp = pytest.importorskip("llama_cpp")
    model = tiny_model.write(tmp_path / "m.gguf", {"tokenizer.ggml.pre": "gpt-2"})
    adapter = tiny_adapter.make(open_checkpoint(model), rslora=True, alpha=1.0)
    path = adapter.save(tmp_path / "a.gguf")
    plain = tv.load(model, "cpu").logits(IDS)
    for scale in (1.0, 0.25):
        theirs = llama_cpp.Llama(
            str(model), lora_path=str(path), lora_scale=scale, n_ctx=256, logits_all=True, verbose=False,
            n_threads=1,
        )  # fmt: skip
        theirs.eval(IDS)
        got = np.array(theirs.scores[: len(IDS)])
        want = tv.load(model, "cpu", adapter=(adapter, scale)).logits(IDS)
        assert np.abs(got - want).max() < 0.02 * np.abs(want - plain).max()
