"""`--adapter` and `trivet merge` as a user runs them."""

import json

import pytest

import tiny_adapter
import tiny_model
import trivet as tv
from command import ok, trivet
from trivet.cli.adapters import scaled
from trivet.models.checkpoint import open_checkpoint

SAME = ("--raw", "--temperature", 0, "--max-tokens", 12, "--json")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model and an adapter's folder."""
    folder = tmp_path_factory.mktemp("cli")
    model = tiny_model.write(folder / "m.gguf")
    return model, tiny_adapter.make(open_checkpoint(model)).save(folder / "adapter")


def test_run_stacks_and_equals_merged(made, tmp_path):
    model, adapter = made
    halves = json.loads(
        ok("run", model, "hello", *SAME, "--adapter", f"{adapter}=0.5", "--adapter", f"{adapter}=0.5")
    )
    one = json.loads(ok("run", model, "hello", *SAME, "--adapter", adapter))
    plain = json.loads(ok("run", model, "hello", *SAME))
    told = json.loads(ok("merge", model, adapter, tmp_path / "out.gguf", "--json"))
    merged = json.loads(ok("run", tmp_path / "out.gguf", "hello", *SAME))
    assert plain["ids"] != one["ids"] == halves["ids"] == merged["ids"]
    assert (len(told["changed"]), told["copied"], told["error"]) == (14, 6, 0.0)


def test_merge_tells_what_it_cost(made, tmp_path):
    model, adapter = made
    said = ok("merge", model, f"{adapter}=0.5", tmp_path / "out.gguf", "--type", "q8_0")
    assert "14 tensors changed, 6 as they were" in said
    assert "largest errors" in said
    assert sum(line.startswith("blk.") for line in said.splitlines()) == 5
    assert ok("inspect", tmp_path / "out.gguf").count("trivet.parent") == 1


def test_chat_swaps(made):
    model, adapter = made
    lines = f"hello\n/adapter '{adapter}'\nhello\n/adapter nowhere\n/adapter {adapter}=2\n/adapter\n"
    done = trivet("chat", model, "--temperature", 0, "--max-tokens", 4, "--json", stdin=lines)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    notes = [line for line in done.stderr.splitlines() if "adapter" in line or "nowhere" in line]
    assert notes[0] == "adapters: adapter = 1"
    assert "nowhere" in notes[1]
    assert notes[2:] == ["adapters: adapter = 2", "adapters: none"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("run", "M", "x", "--adapter", "nowhere"), "nowhere"),
        (("run", "M", "x", "--adapter", "nowhere=2"), "nowhere is none: an adapter is a folder"),
        (("run", "M", "x", "--adapter", "M"), "general.type"),
        (("run", "M", "x", "--adapter", "A=nan"), "the scale is nan"),
        (("merge", "M", "A", "O.gguf", "--type", "q4_k_m"), "type is 'q4_k_m'"),
        (("merge", "M", "A", "M"), "the model itself"),
        (("merge", "M", "A"), "Missing argument 'OUT'"),
        (("merge", "M", "A", "nowhere/O.gguf"), "No such file"),
        (("merge", "M", "A", ""), "empty name"),
        (("export", "M", "-o", ""), "empty name"),
        (("merge", "M", "A", "T"), "no folder; the name of a GGUF file to write ends in .gguf"),
        (("merge", "M", "A", "n" * 300), f"{'n' * 300}: File name too long"),
        (("merge", "M", "A", "n" * 300 + ".gguf"), f"{'n' * 300}.gguf: File name too long"),
        (("export", "M", "-o", "n" * 300 + ".gguf"), f"{'n' * 300}.gguf: File name too long"),
        (("merge", "M", "A=abc", "O.gguf"), "as a scale 'abc' is not a number"),
        (("merge", "M", "A", "A"), "an adapter that is merged"),
    ],
)
def test_mistakes_are_one_line_and_code_2(made, args, says, tmp_path):
    known = {"M": made[0], "A": made[1], "O.gguf": tmp_path / "O.gguf", "T": tmp_path / "text"}
    known |= {a: f"{made[1]}{a[1:]}" for a in ("A=nan", "A=abc")}
    known["T"].touch()
    done = trivet(*(known.get(a, a) for a in args))
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "O.gguf").exists()


def test_paths_with_an_equals_sign(tmp_path):
    (tmp_path / "a=1").mkdir()
    assert scaled([f"{tmp_path}/a=1", f"{tmp_path}/a=1=2", "=3"]) == [
        (f"{tmp_path}/a=1", 1.0),
        (f"{tmp_path}/a=1", 2.0),
        ("=3", 1.0),
    ]
    assert scaled([]) is None


def test_the_python_door(made):
    assert tv.Adapter.open(made[1]).name == "adapter"
    assert "merge" in dir(tv)
    assert callable(tv.merge)
