"""A row's split is its content's; sets that share rows are found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivet.errors import FileError, InputError
from trivet.train.data import Row, Splits, normalise, overlap, refuse_overlap
from trivet.train.data.split import Index, keys


def text(words):
    return Row(1, "text", {"text": words})


def index(name, *texts):
    made = Index(name)
    for line, words in enumerate(texts, 1):
        made.add(keys(text(words)), line)
    return made


@pytest.mark.parametrize(
    "same", ["Hello, world!", "hello  WORLD", "\u00a0Ｈello world\n", "“Hello” — world…"]
)
def test_normalised_texts_are_equal(same):
    assert normalise(same) == "hello world"


@pytest.mark.parametrize("other", ["hello worlds", "helloworld", "hello world 2", "hello + world"])
def test_other_texts_are_not(other):
    assert normalise(other) != "hello world"


def test_numbers_keep_their_signs_and_points():
    assert len({normalise(t) for t in ("2.5", "25", "-2.5", "2 5", "2-5", "2+5")}) == 6
    assert normalise("It is 5.") == normalise("It is 5")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_normalising_twice_changes_nothing(words):
    assert normalise(normalise(words)) == normalise(words)


def test_splits_have_their_fractions_and_do_not_move():
    splits = Splits({"train": 0.8, "validation": 0.1, "test": 0.1}, seed=3)
    found = [splits.of(keys(text(f"row {i}"))) for i in range(4000)]
    assert 3100 < found.count("train") < 3300
    assert 330 < found.count("test") < 470
    assert [splits.of(keys(text(f"ROW  {i}!"))) for i in range(4000)] == found  # twins stay together
    assert "".join(name[:2] for name in found[:20]) == "vatrtrvatrtrtrtrtrtrtrtrtetrvatrtrtrtrtr"  # for good
    others = Splits({"train": 0.8, "validation": 0.1, "test": 0.1}, seed=4)
    assert [others.of(keys(text(f"row {i}"))) for i in range(4000)] != found
    assert Splits({"train": 1}).of(keys(text("a"))) == "train"


def test_a_larger_fraction_keeps_what_was_in_training():
    small, large = Splits({"train": 0.5, "test": 0.5}), Splits({"train": 0.9, "test": 0.1})
    for i in range(200):
        key = keys(text(str(i)))
        assert small.of(key) == "test" or large.of(key) == "train"


@pytest.mark.parametrize(
    "fractions",
    [{"train": 0.9}, {"train": 1.5, "test": -0.5}, {"train": float("nan")}, {"dev": 1.0}, {}],
)
def test_fractions_that_are_none(fractions):
    with pytest.raises(InputError, match="split"):
        Splits(fractions)


def test_overlap():
    first, second = index("a", "one", "two", "three"), index("b", "Two!", "four", "one")
    found = overlap(first, second)
    assert (found.exact, found.normal) == ([(1, 3)], [(2, 1)])
    with pytest.raises(FileError, match=r"b shares 2 rows with a \(1 equal, 1 but .*; lines 1 = 3, 2 = 1\)"):
        refuse_overlap(first, second)
    refuse_overlap(first, index("c", "five"))


def test_rows_of_punctuation_alone_are_told_apart():
    assert not overlap(index("a", "?"), index("b", "!"))
    assert overlap(index("a", "?"), index("b", "?"))
