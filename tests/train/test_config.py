"""Settings from flags and files: names, types and ranges, before anything is opened."""

import math

import pytest

from trivet.errors import FileError, InputError
from trivet.train import config
from trivet.train.config import Finetune, as_dict, make

GIVEN = {"model": "m", "data": "d", "out": "o"}


def test_what_is_kept_makes_the_same_again():
    given = {**GIVEN, "lr": 1, "targets": ["a", "b"], "columns": {"prompt": "q"}, "rows": 0, "micro": 4}
    made = make(Finetune, given)
    assert (made.lr, made.targets) == (1.0, ("a", "b"))
    assert make(Finetune, as_dict(made)) == made


def test_the_usual_learning_rates():
    rates = {m: make(Finetune, {**GIVEN, "method": m}).rate for m in ("full", "lora", "qlora")}
    assert rates == {"full": 2e-5, "lora": 2e-4, "qlora": 2e-4}
    assert make(Finetune, {**GIVEN, "lr": 0.5}).rate == 0.5


WRONG = [
    ({"nope": 1}, "no setting 'nope'"),
    ({"rank": "x"}, "rank is 'x'; wanted: int"),
    ({"rank": 16.0}, "rank is 16.0; wanted: int"),
    ({"rank": True}, "rank is True; wanted: int"),
    ({"lr": True}, "lr is True; wanted: float"),
    ({"lr": math.nan}, "the learning rate is nan"),
    ({"lr": 0}, "the learning rate is 0.0"),
    ({"targets": "all"}, "targets is 'all'; wanted a list"),
    ({"targets": {"a": "b"}}, "wanted a list"),
    ({"targets": []}, "targets are ()"),
    ({"columns": ["a"]}, "wanted a table of names"),
    ({"columns": {"a": 1}}, "wanted a table of names"),
    ({"epochs": 10**30}, "epochs is"),
    ({"micro": 2}, "micro is 2, and rows 8"),
    ({"mesh": 8}, "mesh is 8; wanted: str"),
    ({"evaluate": 2}, "evaluate is 2; wanted a validation file"),
    ({"holdout": 0.1, "validation": "v"}, "0 with a validation file"),
    ({"holdout": math.nan}, "holdout is nan"),
    ({"length": 4096}, "length is 4096"),
    ({"out": "a\0b"}, "zero byte"),
    ({"out": ""}, "out is empty"),
    ({"clip": math.inf}, "clip is inf"),
    ({"beta1": 1.0}, "beta1 is 1.0; wanted 0 <= x <= 0.9999999"),
    ({"clip": -1}, "clip is -1.0; wanted 0 <= x <= 1e+18"),
]


@pytest.mark.parametrize(("given", "said"), WRONG, ids=[said for _, said in WRONG])
def test_wrong_settings(given, said):
    with pytest.raises(InputError) as caught:
        make(Finetune, {**GIVEN, **given})
    assert said in str(caught.value)


def test_what_must_be_given():
    for name in GIVEN:
        with pytest.raises(InputError, match=f"{name} is missing"):
            make(Finetune, {k: v for k, v in GIVEN.items() if k != name})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a = [", "Invalid value"),
        (b"\xff", "is not UTF-8: byte 0 is 0xff"),
        (b"a=" + b"[" * 100_000, "recursion"),
        (b"a=" + b"1" * 5000, "limit"),
    ],
)
def test_bad_files(tmp_path, text, said):
    (tmp_path / "t.toml").write_bytes(text)
    with pytest.raises(FileError, match=said):
        config.read(tmp_path / "t.toml")
    for path in (tmp_path, tmp_path / "none.toml"):
        with pytest.raises(FileError):
            config.read(path)
