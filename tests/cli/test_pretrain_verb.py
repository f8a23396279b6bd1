"""`trivet pretrain`: flags win over the TOML file, a dry run writes nothing, what it says to type works."""

import json
import shlex

import pytest
from typer.testing import CliRunner

from trivet.cli.main import app
from trivet.errors import InputError

FLAGS = "--layers 1 --width 32 --heads 2 --context 32 --rows 4 --steps 3"


def call(line):
    made = CliRunner().invoke(app, shlex.split(line))
    if made.exception and not isinstance(made.exception, SystemExit):
        raise made.exception
    return made.stdout


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("the quick brown fox jumps over the lazy dog\n" * 60)
    return path


def test_from_corpus_to_text(corpus, tmp_path):
    out = tmp_path / "run"
    said = call(f"pretrain {corpus} --out {out} {FLAGS}")
    assert f"wrote {out}/model.gguf" in said
    following = next(line for line in said.splitlines() if line.startswith("next: trivet run "))
    assert call(following.removeprefix("next: trivet ").replace("...", "the") + " --max-tokens 3")


def test_flags_win_and_a_dry_run_writes_nothing(corpus, tmp_path):
    config, out = tmp_path / "c.toml", tmp_path / "run"
    config.write_text(
        f'data = "{corpus}"\nout = "{out}"\nsteps = 7\nstyle = "gpt2"\ntokenizer = "bpe"\nvocab = 262\n'
    )
    plan = json.loads(call(f"pretrain --config {config} --dry-run --json {FLAGS}"))
    assert plan["steps"] == 3
    assert plan["parameters"] == plan["of"] == 262 * 32 + 32 * 32 + 12 * 32 * 32 + 13 * 32 + 2 * 32
    assert not out.exists()


def test_resume_takes_no_settings(corpus, tmp_path):
    with pytest.raises(InputError, match="resume"):
        call(f"pretrain {corpus} --resume {tmp_path}")
