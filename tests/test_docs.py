"""The documents tell the truth: their trees and paths exist, their code runs, docstrings too."""

import doctest
import importlib
import pkgutil
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import trivet as tv
from trivet import backends, dtypes, models, runtime
from trivet.errors import UnsupportedError
from trivet.models.checkpoint import open_checkpoint
from trivet.ops.table import TABLE

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:py|cc|h|c|md|toml))`")


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), flags=re.M | re.S)


def tracked():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [Path(line) for line in listed.stdout.splitlines() if (ROOT / line).exists()]


def tree_of_readme():
    """Every path that the README's tree names, and the folders above it."""
    text = (ROOT / "README.md").read_text("utf-8").split("## The tree")[1]
    named, above = set(), Path()
    for line in re.search(r"```\n(.*?)```", text, re.S)[1].splitlines():
        path = Path(line.split()[0])
        if not line.startswith(" "):
            above = path
        else:
            path = above / path
        named |= {path, *path.parents}
    return named - {Path()}


def test_the_tree_in_the_readme_is_the_tree():
    named = tree_of_readme()
    files = tracked()
    folders = {parent for file in files for parent in file.parents} - {Path()}
    for folder in {path.parent for path in named}:
        told = {p for p in named if p.parent == folder}
        there = {p for p in folders if p.parent == folder and not p.name.startswith(".")}
        if any(p in files for p in told):  # a level that names files names them all
            there |= {p for p in files if p.parent == folder and p.suffix == ".py" and p.name[0] != "_"}
        assert sorted(map(str, told)) == sorted(map(str, there)), folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_what_exists(page):
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    gone = [link for link in links if not (page.parent / link).exists()]
    there = {f"/{path.as_posix()}" for file in tracked() for path in (file, *file.parents)}
    made = {"models/arcee.py", "backends/toy/__init__.py", ".venv", "build"}  # by whoever follows the page
    names = {name.rstrip("/") for name in PATH.findall(text)} - made
    gone += [name for name in names if not any(path.endswith(f"/{name}") for path in there)]
    assert gone == []


@pytest.mark.model
@pytest.mark.parametrize("page", [p for p in PAGES if p.name[:6] != "add-a-"], ids=lambda page: page.name)
def test_code_in_pages_runs(page, capsys, tmp_path, monkeypatch):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)  # pages may write
    names = {}
    for code in blocks(page, "python"):
        exec(compile(code, page.name, "exec"), names)
    if page.name == "README.md":
        assert "Paris" in names["done"].text
        assert names["logits"].dtype == np.float32
        assert capsys.readouterr().out.endswith("[2. 4. 6.]\n")


def test_add_a_model(tmp_path, monkeypatch):
    """Does what docs/add-a-model.md says, with the file outside the package."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    (tmp_path / "arcee.py").write_text("\n\n".join(blocks(ROOT / "docs/add-a-model.md", "python")), "utf-8")
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    monkeypatch.setitem(models.ARCHITECTURES, "arcee", "arcee")
    monkeypatch.setitem(models.MODEL_TYPES, "arcee", "arcee")

    torch.manual_seed(3)
    config = transformers.ArceeConfig(
        vocab_size=131, hidden_size=48, intermediate_size=88, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.3, bos_token_id=1,
        eos_token_id=2, mlp_bias=True,
    )  # fmt: skip
    theirs = transformers.ArceeForCausalLM._from_config(config, attn_implementation="eager").eval()
    ids = np.random.default_rng(5).integers(0, 131, 40)
    with torch.no_grad():
        want = theirs(torch.tensor(ids)[None]).logits[0].numpy()
    theirs.save_pretrained(tmp_path / "tiny")
    for device in ("reference", "cpu"):
        got = tv.load(tmp_path / "tiny", device=device, kv="f32").logits(ids.tolist())
        assert np.abs(got - want).max() < 2e-4 * max(1.0, np.abs(want).max()), device
    module, checkpoint = models.by_architecture("arcee"), open_checkpoint(tmp_path / "tiny")
    assert module.hf_metadata(module.hf_config(checkpoint)) == checkpoint.metadata


def test_the_table_of_models_is_the_registry():
    """docs/models.md has a row for each architecture, with Hugging Face's names for it."""
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", (ROOT / "docs/models.md").read_text("utf-8"), re.M)
    assert [name for name, _ in rows] == sorted(models.ARCHITECTURES)
    types = {kind: name for name, kinds in rows for kind in re.findall(r"`(\w+)`", kinds)}
    assert {kind: models.ARCHITECTURES[name] for kind, name in types.items()} == models.MODEL_TYPES


#: rows that the toy of docs/add-a-backend.md lowers, and some that it expands
TOY_ROWS = ("add", "matmul", "linear", "softmax", "rms_norm", "layer_norm", "swiglu", "rope")


def test_add_a_backend(tmp_path, monkeypatch):
    """Does what docs/add-a-backend.md says, with the folder outside the package."""
    pytest.importorskip("torch")
    import test_table as table

    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import gen_support

    (tmp_path / "toy").mkdir()
    code = "\n\n".join(blocks(ROOT / "docs/add-a-backend.md", "python"))
    (tmp_path / "toy/__init__.py").write_text(code, "utf-8")
    monkeypatch.setattr(backends, "__path__", [*backends.__path__, str(tmp_path)])
    monkeypatch.setitem(runtime.BACKENDS, "toy", "toy")
    backends.names.cache_clear()
    try:
        toy = backends.get("toy")
        told = {name: gen_support.of_row(toy, TABLE[name]) for name in TABLE}
        assert told["linear"]["f32"] == "fallback"
        assert told["matmul"]["f32"] == "lowering"
        assert told["matmul"]["bf16"] == "unsupported"
        for row in TABLE.values():
            for i in range(len(row.samples) if row.name in TOY_ROWS else 1):
                reason = table.forward(row, i, dtypes.f32).on(toy)
                assert reason is None or "unsupported" in told[row.name].values(), row
        for name in ("sum", "softmax"):
            assert table.backward(TABLE[name], 0).on(toy) is None
        with tv.device("toy"):
            x = tv.asarray(np.float32([[1, 2], [3, 4]]))
            assert x.device == "toy"
            assert (x @ x).numpy().tolist() == [[7, 10], [15, 22]]
            with pytest.raises(UnsupportedError, match="erf"):
                tv.ops.erf(x).numpy()
    finally:
        backends.find.cache_clear()
        backends.names.cache_clear()


def modules_with_examples():
    found = []
    absent = tuple(f"trivet.backends.{name}." for name, reason in backends.available().items() if reason)
    for info in pkgutil.walk_packages(tv.__path__, "trivet."):
        if info.name.startswith(absent):
            continue  # its library is not installed
        module = importlib.import_module(info.name)
        if any(test.examples for test in doctest.DocTestFinder().find(module)):
            found.append(info.name)
    return ["trivet", *found]


@pytest.mark.parametrize("name", modules_with_examples())
def test_docstring_examples(name):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    result = doctest.testmod(importlib.import_module(name), optionflags=flags)
    assert result.attempted > 0
    assert result.failed == 0
