"""The recipe `finetune`: what it refuses, what it leaves, and that a run which was stopped ends with the same
bits as one that was not."""

import fcntl
import json
import os
import signal
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import tiny_model
import trivet as tv
import tuning
from trivet.errors import FileError, InputError, NonFiniteError
from trivet.train import checkpoint, curve, log
from trivet.train.events import Evaluated, Note, Planned, Saved, Stepped


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    made = tmp_path_factory.mktemp("files")
    tiny_model.write(made / "floats.gguf")
    tuning.packed_model(made / "packed.gguf")
    tuning.rows(made / "train.jsonl", 20)
    tuning.rows(made / "held.jsonl", 5, 100)
    return made


def tune(files, out, model="floats.gguf", data="train.jsonl", **settings):
    return tv.finetune(files / model, files / data, out=out, threads=1, **settings)


def stop_after(step):
    """A watcher that presses Ctrl-C."""

    def watch(event):
        if isinstance(event, Stepped) and event.report.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    return watch


# --- what it gives ---


@pytest.mark.parametrize(
    ("model", "settings", "method"),
    [
        ("floats.gguf", {}, "lora"),
        ("packed.gguf", {}, "qlora"),
        ("packed.gguf", {"base": "nf4", "nf4_block": 32, "nf4_double": False}, "qlora"),
        ("floats.gguf", {"method": "qlora", "compute": "bf16", "checkpointing": "block"}, "qlora"),
        ("packed.gguf", {"method": "lora", "compute": "bf16", "checkpointing": "block"}, "lora"),
        ("packed.gguf", {"method": "full", "lr": 1e-3}, "full"),
    ],
)
def test_a_run_learns_and_its_result_opens(files, tmp_path, model, settings, method):
    settings = {"lr": 1e-2, "epochs": 4, "rows": 4, **settings}
    events = []
    held = str(files / "held.jsonl")
    run = tune(files, tmp_path / "run", model, validation=held, evaluate=5, watch=events.append, **settings)
    assert run.finished
    assert run.steps == 20
    assert run.losses[-1][1] < run.losses[0][1]
    (plan,) = (e for e in events if isinstance(e, Planned))
    assert (plan.method, plan.steps, plan.examples, plan.validation) == (method, 20, 20, 5)
    assert [e.step for e in events if isinstance(e, Evaluated)] == [5, 10, 15, 20]
    assert run.curve
    assert run.curve.read_text("utf-8").startswith("<svg")
    with_it = (
        tv.load(run.result) if method == "full" else tv.load(files / model, adapter=run.result)
    ).generate("hello", max_tokens=4, temperature=0)
    assert with_it.text


def test_the_log_has_every_event(files, tmp_path):
    events = []
    tune(files, tmp_path / "run", rows=5, holdout=0.2, evaluate=1, watch=events.append)
    lines = log.read(tmp_path / "run")
    assert [line["event"] for line in lines] == [type(e).__name__.lower() for e in events]
    losses = [line["loss"] for line in lines if line["event"] == "stepped"]
    assert losses == [e.report.loss for e in events if isinstance(e, Stepped)]


def test_the_best_by_validation_is_handed_over(files, tmp_path):
    """At a rate that destroys the model the first measurement is the best."""
    out, events = tmp_path / "run", []
    held = str(files / "held.jsonl")
    run = tune(
        files, out, epochs=3, rows=10, lr=30.0, schedule="constant", warmup=2, clip=0.0,
        validation=held, evaluate=1, keep=1, watch=events.append,
    )  # fmt: skip
    losses = dict(run.validation)
    best = min(losses, key=losses.get)
    assert best < run.steps, losses
    assert [p.name for p in checkpoint.checkpoints(out)] == [f"step-{n:08}" for n in (best, run.steps)]
    assert f"step {best} had the lowest validation loss" in run.notes[-1]
    saved = checkpoint.load(checkpoint.best(out)).arrays["blk.0.attn_q.weight.lora_a"]
    file = (out / "adapter" / "adapter_model.safetensors").read_bytes()
    assert saved.tobytes() in file


def test_nothing_but_what_it_says_is_left(files, tmp_path):
    tune(files, tmp_path / "run", rows=10, save=1)
    left = sorted(p.name for p in (tmp_path / "run").iterdir())
    assert left == [".lock", "adapter", "log.jsonl", "loss.svg", "step-00000001", "step-00000002"]


# --- what it refuses, before there is a folder ---

REFUSED = {
    "[lora] rank is 0": {"rank": 0},
    "the learning rate is nan": {"lr": float("nan")},
    "the learning rate is inf": {"lr": float("inf")},
    "the learning rate is 0": {"lr": 0.0},
    "the learning rate is -1": {"lr": -1.0},
    "epochs is -1": {"epochs": -1},
    "steps is -1": {"steps": -1},
    "tokens is 0": {"tokens": 0},
    "micro is 2, and rows 8": {"micro": 2},
    "no linear layer matches nope": {"targets": ["nope"]},
    "wanted a list of names": {"targets": "q_proj"},
    "method is 'x'": {"method": "x"},
    "base is 'file', which wants a packed one": {"base": "file"},
    "base is 'x'": {"base": "x"},
    "base is 'nf4', which is for qlora": {"base": "nf4", "method": "lora"},
    "nf4_block is 48": {"nf4_block": 48},
    "nf4_block is 32, which lora has no use for": {"nf4_block": 32},
    "nf4_double is False, which lora": {"nf4_double": False},
    "which qlora on the file's own blocks has": {"nf4_double": False, "model": "packed.gguf"},
    "rank is 4, which full has no use for": {"rank": 4, "method": "full"},
    "targets is ('q_proj',), which full has": {"targets": ["q_proj"], "method": "full"},
    "evaluate is 3; wanted a validation file": {"evaluate": 3},
    "holdout is 1": {"holdout": 1.0},
    "20 rows, and no example for validation": {"holdout": 1e-6, "skip_refused": True},
    "20 rows, and no example for train": {"length": 1},
    "[data] train_on 'x'": {"train_on": "x"},
    "no setting 'ranks'": {"ranks": 4},
    "dropout is nan": {"dropout": float("nan")},
    "zero byte": {"validation": "a\0b"},
}


@pytest.mark.parametrize("said", REFUSED)
def test_wrong_settings(files, tmp_path, said):
    with pytest.raises((InputError, FileError)) as caught:
        tune(files, tmp_path / "run", **REFUSED[said])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


ROW = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
FILES = {
    "line 2: invalid JSON": ROW + "nope\n",
    "line 2: not UTF-8: byte 9 is 0xff": ROW.encode() + b'{"text":"\xff"}',
    "0 rows, and no example for train": "",
    "1 rows, and no example for train": '{"messages": [{"role": "user", "content": "hello"}]}\n',
    "line 1: message 0 has the role 'king'": '{"messages": [{"role": "king", "content": "a"}]}',
    "line 1: the conversation is empty": '{"messages": []}',
}


@pytest.mark.parametrize("part", ["data", "validation"])
@pytest.mark.parametrize("said", FILES)
def test_bad_rows(files, tmp_path, said, part):
    text = FILES[said]
    (tmp_path / "bad.jsonl").write_bytes(text if isinstance(text, bytes) else text.encode())
    bad = {part: str(tmp_path / "bad.jsonl")}
    with pytest.raises(FileError) as caught:
        tune(files, tmp_path / "run", **bad)
    assert said.replace("train", "train" if part == "data" else "validation") in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_rows_that_training_has_seen_do_not_measure(files, tmp_path):
    with pytest.raises(FileError, match=r"train.jsonl shares 20 rows"):
        tune(files, tmp_path / "run", validation=str(files / "train.jsonl"))


def test_a_folder_in_use_a_file_and_a_folder_that_cannot_be(files, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    (tmp_path / "file").write_text("x")
    for out, said in (
        ("full", "is not empty"),
        ("file", "is a file; wanted a folder"),
        ("file/below", "is a file; wanted a folder"),
        ("x" * 300, "File name too long"),
    ):
        with pytest.raises((InputError, FileError), match=said):
            tune(files, tmp_path / out)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "full"]
    with pytest.raises(FileError, match="/proc/x"):
        tune(files, "/proc/x")


def test_two_processes_do_not_share_a_folder(files, tmp_path):
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(FileError, match="another process is at work there"):
            tune(files, tmp_path, rows=10)
    finally:
        os.close(handle)
    assert tune(files, tmp_path, rows=10).finished


def test_steps_that_are_not_finite_end_the_run_and_leave_a_checkpoint(tmp_path):
    weights = {"output_norm.weight": np.full(tiny_model.WIDTH, np.inf, np.float32)}
    tiny_model.write(tmp_path / "m.gguf", weights=weights)
    tuning.rows(tmp_path / "d.jsonl", 20)
    with pytest.raises(NonFiniteError, match="steps 1 to 10 had a loss or gradients that are not finite"):
        tune(tmp_path, tmp_path / "run", "m.gguf", "d.jsonl", rows=1)
    saved = checkpoint.load(checkpoint.latest(tmp_path / "run"))
    assert saved.step == 10
    assert all(not a.any() for n, a in saved.arrays.items() if n.endswith("lora_b"))


@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_run_in_which_nothing_was_trained_has_no_result(tmp_path, method):
    weights = {"output_norm.weight": np.full(tiny_model.WIDTH, np.nan, np.float32)}
    tiny_model.write(tmp_path / "m.gguf", weights=weights)
    tuning.rows(tmp_path / "d.jsonl", 20)
    said = "all 2 steps had a loss or gradients that are not finite"
    with pytest.raises(NonFiniteError, match=said):
        tune(tmp_path, tmp_path / "run", "m.gguf", "d.jsonl", rows=10, method=method)
    assert not {"adapter", "model.gguf"} & {p.name for p in (tmp_path / "run").iterdir()}
    with pytest.raises(NonFiniteError, match=said):
        tv.resume(tmp_path / "run")


# --- stopped and resumed ---

WAYS = {
    "rows": {"rows": 4},
    "accumulation": {"rows": 6, "tokens": 64},
    "packing": {"rows": 0, "micro": 3, "tokens": 80},
    "dropout": {"rows": 4, "dropout": 0.3},
    "qlora": {"rows": 4, "model": "packed.gguf"},
    "nf4": {"rows": 4, "base": "nf4"},
    "bf16, blocks anew": {"rows": 4, "compute": "bf16", "checkpointing": "block"},
    "validation": {"rows": 4, "holdout": 0.3, "evaluate": 2, "save": 3, "keep": 1, "lr": 0.3},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_stopped_run_goes_on_to_the_same_bits(files, tmp_path, way):
    settings = {"epochs": 3, "warmup": 2, "lr": 1e-2, **WAYS[way]}
    whole = tune(files, tmp_path / "one" / "run", **settings)
    out = tmp_path / "two" / "run"
    stopped = tune(files, out, watch=stop_after(3), **settings)
    assert (stopped.finished, stopped.steps, stopped.result) == (False, 3, None)
    again = tv.resume(out, watch=stop_after(4), threads=2)
    assert (again.finished, again.steps) == (False, 4)
    rest = tv.resume(out, threads=1)
    assert rest.finished
    assert stopped.losses + again.losses + rest.losses == whole.losses
    measured = stopped.validation + again.validation + rest.validation
    assert measured == whole.validation
    tuning.same_end(tmp_path / "one" / "run", out)
    lines = log.read(out)
    for event in ("stepped", "evaluated"):
        steps = [line["step"] for line in lines if line["event"] == event]
        assert steps == sorted(set(steps))
    assert [line["step"] for line in lines if line["event"] == "stepped"] == [n for n, _ in whole.losses]


def test_a_finished_run_resumes_to_the_same_result(files, tmp_path):
    out = tmp_path / "run"
    tune(files, out, rows=10, holdout=0.3, evaluate=1)
    before, lines = tuning.arrays(out), log.read(out)
    run = tv.resume(out)
    assert run.finished
    assert not run.losses
    assert tuning.arrays(out) == before
    kept = [line for line in log.read(out) if line["event"] in ("stepped", "evaluated")]
    assert kept == [line for line in lines if line["event"] in ("stepped", "evaluated")]


@pytest.mark.parametrize("torn", [b'{"event": "stepped", "st', b"\xff\xfe\n[[[\n5\nnull\n"])
def test_a_torn_log_is_mended(files, tmp_path, torn):
    out = tmp_path / "run"
    tune(files, out, rows=4, watch=stop_after(2))
    with (out / "log.jsonl").open("ab") as file:
        file.write(torn)
    tv.resume(out)
    lines = (out / "log.jsonl").read_bytes().splitlines()
    assert [x["step"] for x in map(json.loads, lines) if x["event"] == "stepped"] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "line",
    [
        '{"event":"stepped","step":1,"loss":1e999}',
        '{"event":"stepped","step":1,"loss":NaN}',
        '{"event":"stepped","step":1,"loss":-1.5}',
        '{"event":"stepped","step":1,"loss":1e300}',
        '{"event":"stepped","step":0,"loss":1.5}',
        '{"event":"stepped","step":-9,"loss":1.5}',
        '{"event":["stepped"],"step":true,"loss":1.5}',
        '{"event":"evaluated","step":1,"loss":-Infinity}',
    ],
)
def test_the_curve_skips_what_no_run_has_had(files, tmp_path, line):
    out = tmp_path / "run"
    tune(files, out, rows=4, watch=stop_after(2))
    with (out / "log.jsonl").open("a") as file:
        file.write(line + "\n")
    drawn = tv.resume(out).curve.read_text()
    points = ET.fromstring(drawn).find("{*}polyline").get("points").split()
    assert len(points) == 5
    (out / "log.jsonl").write_text(line + "\n")  # and nothing else: there may be no curve at all
    assert curve.draw(out) is None


def test_a_curve_of_losses_next_to_nothing(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"event":"stepped","step":1,"loss":5e-324}\n')
    assert curve.draw(tmp_path).read_text().startswith("<svg")


def test_a_file_where_the_result_will_be_is_told_first(files, tmp_path):
    for name, made in (("adapter", "file"), ("model.gguf", "folder"), ("loss.svg", "folder")):
        out = tmp_path / name
        tune(files, out, rows=4, watch=stop_after(2))
        (out / name).unlink(missing_ok=True)
        (out / name).mkdir() if made == "folder" else (out / name).write_text("x")
        with pytest.raises(FileError, match=f"{name} is a {made}"):
            tv.resume(out, watch=lambda _: pytest.fail("time was spent"))


def test_a_run_says_that_it_goes_on_elsewhere(files, tmp_path):
    out = tmp_path / "run"
    begun = tune(files, out, rows=4, watch=stop_after(2), device="cpu")
    assert not any("goes on" in note for note in begun.notes)
    again = tv.resume(out, device="cpu", watch=stop_after(3))
    assert not any("goes on" in note for note in again.notes)
    rest = tv.resume(out, device="reference", watch=stop_after(4))
    assert "the run began on cpu and goes on on reference: its bits may differ" in rest.notes


def test_what_a_resume_refuses(files, tmp_path):
    model, data, held = (tmp_path / name for name in ("m.gguf", "d.jsonl", "h.jsonl"))
    tiny_model.write(model)
    tuning.rows(data, 20)
    tuning.rows(held, 5, 100)
    out = tmp_path / "run"
    tv.finetune(model, data, out=out, rows=4, validation=str(held), watch=stop_after(2))
    before = tuning.rows(tmp_path / "same.jsonl", 20).read_bytes()
    tuning.rows(data, 21)
    with pytest.raises(FileError, match="the data file was changed"):
        tv.resume(out)
    data.write_bytes(before)
    tuning.rows(held, 6, 100)
    with pytest.raises(FileError, match="the validation examples were changed"):
        tv.resume(out)
    tuning.rows(held, 5, 100)
    other = tiny_model.tensors()["output_norm.weight"] * 2
    tiny_model.write(model, weights={"output_norm.weight": other})
    with pytest.raises(FileError, match="is not the model this run began with"):
        tv.resume(out)
    tiny_model.write(model)
    assert tv.resume(out).finished


GONE = object()
FORGED = [
    ("recipe", ["a"]), ("recipe", GONE), ("config", 3), ("config", []), ("config", {}), ("config", {"x": 1}),
    ("config", GONE), ("model", 3), ("validation", [1]), ("trainer", GONE), ("trainer", []), ("data", GONE),
    ("data", []), ("best", [1]), ("best", "ab"), ("best", {"a": 1}), ("best", ["a", 1.0]), ("best", [1, "x"]),
    ("best", [True, 1.0]), ("best", [99, 1.0]), ("measured", "a"), ("measured", 99), ("skipped", None),
    ("skipped", 3), ("trainer.taken", 99), ("trainer.taken", 2.0), ("trainer.taken", GONE),
    ("trainer.moves", 3), ("trainer.moves", -1), ("trainer.seed", "0"), ("trainer.seed", 2**64),
    ("data.epoch", 10**30), ("data.epoch", None), ("data.step", 1), ("data.step", [2]), ("data.file", [2]),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), FORGED)
def test_a_checkpoint_that_was_edited_and_sealed_again(stopped, tmp_path, field, value):
    saved = checkpoint.load(checkpoint.latest(stopped))
    facts = json.loads(json.dumps(saved.facts))
    *way, last = field.split(".")
    inner = facts[way[0]] if way else facts
    inner[last] = value
    if value is GONE:
        del inner[last]
    checkpoint.save(tmp_path, saved.step, saved.arrays, facts)
    with pytest.raises(FileError) as caught:
        tv.resume(tmp_path, watch=lambda _: pytest.fail("time was spent"))
    assert (field if field != "data.file" else "data file") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def stopped(files, tmp_path_factory):
    out = tmp_path_factory.mktemp("stopped")
    tune(files, out, rows=4, watch=stop_after(2))
    return out


def test_a_checkpoint_of_a_step_beyond_the_run(stopped, tmp_path):
    saved = checkpoint.load(checkpoint.latest(stopped))
    facts = json.loads(json.dumps(saved.facts))
    facts["trainer"]["taken"] = 99
    facts["data"] |= {"epoch": 19, "step": 4}
    checkpoint.save(tmp_path, 99, saved.arrays, facts)
    with pytest.raises(FileError, match="is of step 99; the run has 5"):
        tv.resume(tmp_path)


def test_a_run_of_relative_paths_goes_on_from_another_folder(files, tmp_path, monkeypatch):
    monkeypatch.chdir(files)
    tv.finetune(
        "floats.gguf", "train.jsonl", out=tmp_path / "run", validation="held.jsonl", rows=4,
        watch=stop_after(2), threads=1,
    )  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert tv.resume("run").finished


def test_folders_that_are_no_runs(tmp_path):
    (tmp_path / "file").write_text("x")
    for out in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(FileError, match=r"has no checkpoint|Not a directory"):
            tv.resume(out)
    checkpoint.save(tmp_path, 1, {"w": np.zeros(3)}, {})
    with pytest.raises(FileError, match="recipe"):
        tv.resume(tmp_path)


def test_a_run_killed_before_its_first_checkpoint_begins_anew(files, tmp_path):
    (tmp_path / "log.jsonl").write_bytes(
        b'{"event": "planned"}\n{"event": "stepped", "step": 1, "loss": 7.0}\n{"'
    )
    run = tune(files, tmp_path, rows=10)
    steps = [line["step"] for line in log.read(tmp_path) if line["event"] == "stepped"]
    assert steps == [n for n, _ in run.losses] == [1, 2]


def test_a_run_killed_in_its_first_save_begins_anew(files, tmp_path):
    left = [".step-00000001.partial-1234", ".step-00000001.removed-1234"]
    for name in left:
        (tmp_path / name).mkdir()
        (tmp_path / name / "tensors.safetensors").write_bytes(b"x")
    (tmp_path / ".lock").touch()
    (tmp_path / ".log.jsonl.partial").write_bytes(b"x")
    assert tune(files, tmp_path, rows=10).finished
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        ".lock", "adapter", "log.jsonl", "loss.svg", "step-00000002"
    ]  # fmt: skip


def test_a_checkpoint_that_a_killed_save_set_aside_is_not_written_over(files, tmp_path):
    (tmp_path / ".step-00000001.replaced-1234").mkdir()
    with pytest.raises(InputError, match="is not empty; resume"):
        tune(files, tmp_path, rows=10)


def test_a_best_that_was_removed_is_told(files, tmp_path):
    out, events = tmp_path / "run", []

    def remove(event):
        events.append(event)
        if isinstance(event, Saved) and event.step == 6:
            for path in list(checkpoint.checkpoints(out))[:-1]:
                for file in path.iterdir():
                    file.unlink()
                path.rmdir()

    held = str(files / "held.jsonl")
    settings = {"rows": 10, "epochs": 3, "lr": 30.0, "schedule": "constant", "warmup": 2, "clip": 0.0}
    run = tune(files, out, validation=held, evaluate=1, watch=remove, **settings)
    assert run.finished
    assert any(isinstance(e, Note) and "was removed: the last is handed over" in e.text for e in events)
