"""Packing and order: nothing is lost, nothing is seen twice, and every step can be reached at once."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivet.errors import FileError, InputError
from trivet.train.data import UNTRAINED, Batches, Dataset, Example, Position, pack, permutation
from trivet.train.data.pack import OPEN, first_fit


def dataset(*lengths, sha256="f" * 64, seed=0):
    """Examples of these many positions, each id unlike any other."""
    sizes = np.array(lengths, np.int64) + 1
    rng = np.random.default_rng(seed)
    trained = rng.random(sizes.sum()) < 0.5
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    trained[offsets[1:] - 1] = True
    trained[offsets[:-1]] = False
    ids = np.arange(sizes.sum(), dtype=np.int32)
    return Dataset("train", ids, trained, offsets, np.arange(1, len(sizes) + 1), sha256)


def test_a_batch_is_its_examples_one_after_the_other():
    a = Example(np.array([5, 6, 7], np.int32), np.array([False, False, True]))
    b = Example(np.array([8, 9], np.int32), np.array([False, True]))
    batch = pack([a, b])
    assert batch.ids.tolist() == [5, 6, 8]
    assert batch.targets.tolist() == [UNTRAINED, 7, 9]
    assert batch.positions.tolist() == [0, 1, 0]
    assert batch.starts.tolist() == [0, 0, 2]
    assert batch.trained == 2
    assert all(x.dtype == np.int32 for x in (batch.ids, batch.targets, batch.positions, batch.starts))


@given(st.lists(st.integers(1, 20), min_size=1, max_size=20))
def test_a_packed_example_is_the_example_alone(lengths):
    data = dataset(*lengths)
    examples = [data[i] for i in range(len(data))]
    batch = pack(examples)
    for i, example in enumerate(examples):
        alone = pack([example])
        begin = sum(lengths[:i])
        part = slice(begin, begin + lengths[i])
        assert batch.ids[part].tolist() == alone.ids.tolist()
        assert batch.targets[part].tolist() == alone.targets.tolist()
        assert batch.positions[part].tolist() == alone.positions.tolist()
        assert (batch.starts[part] == begin).all()  # sees itself, and nothing before it
    assert batch.trained == data.targets


@given(st.lists(st.integers(1, 50), max_size=300), st.integers(50, 120))
def test_first_fit_loses_nothing_and_fills_well(lengths, capacity):
    bins = first_fit(range(len(lengths)), np.array(lengths, np.int64), capacity)
    assert sorted(i for b in bins for i in b) == list(range(len(lengths)))
    assert all(0 < sum(lengths[i] for i in b) <= capacity for b in bins)
    assert sum(2 * sum(lengths[i] for i in b) <= capacity for b in bins) <= 1 + len(bins) // OPEN
    assert [b[0] for b in bins] == sorted(b[0] for b in bins)


def test_an_example_longer_than_a_batch_is_refused():
    with pytest.raises(InputError, match="micro-batches of 8 tokens; the example of line 2 has 9"):
        Batches(dataset(3, 9), 8)


def test_the_permutation_is_the_same_everywhere():
    """These are its values for good: runs in the middle of an epoch depend on them."""
    assert permutation(8, 1, 0).tolist() == [3, 5, 2, 7, 0, 6, 1, 4]
    assert permutation(8, 1, 1).tolist() == [0, 6, 5, 3, 4, 7, 2, 1]
    assert sorted(permutation(1000, 2**64 - 1, 7)) == list(range(1000))
    assert permutation(8, 2**64 - 1, 0).tolist() != permutation(8, 2**64 - 2, 0).tolist()
    firsts = [permutation(10, seed, epoch)[0] for seed in range(20) for epoch in range(20)]
    assert min(firsts.count(i) for i in range(10)) > 20


@pytest.mark.parametrize(
    "options", [{"rows": 4}, {"rows": 1}, {"micro": 1}, {"micro": 3}, {"shuffle": False}]
)
def test_every_epoch_has_every_example_once(options):
    data = dataset(*(1 + i * 7 % 13 for i in range(50)))
    batches = Batches(data, 30, seed=5, **options)
    seen, orders = [], []
    for at, step in batches.walk(3):
        assert len(step) <= (options.get("micro", 1) if "rows" not in options else 4)
        assert all(len(batch.ids) <= 30 for batch in step)
        if at.step == 0:
            seen.append([])
        seen[-1] += [int(i) for batch in step for i in batch.ids]
    every = sorted(int(i) for n in range(len(data)) for i in data[n].ids[:-1])
    assert [sorted(epoch) for epoch in seen] == [every] * 3
    orders = {tuple(epoch) for epoch in seen}
    assert len(orders) == (1 if options == {"shuffle": False} else 3)
    assert batches.total(3) == sum(1 for _ in batches.walk(3))


@pytest.mark.parametrize("options", [{"rows": 4}, {"micro": 2}])
def test_a_run_resumes_at_any_step(options):
    data = dataset(*(1 + i * 5 % 11 for i in range(23)))
    whole = list(Batches(data, 16, seed=9, **options).walk(3))
    for k, (at, _) in enumerate(whole):
        state = json.loads(json.dumps(Batches(data, 16, seed=9, **options).state(at)))
        again = Batches(data, 16, seed=9, **options)  # as another process does
        rest = list(again.walk(3, again.resume(state)))
        assert [a for a, _ in rest] == [a for a, _ in whole[k:]]
        for (_, got), (_, want) in zip(rest, whole[k:], strict=True):
            assert [b.ids.tolist() for b in got] == [b.ids.tolist() for b in want]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (Batches(dataset(3, 4, sha256="e" * 64), 16), "the data file was changed"),
        (Batches(dataset(4, 3), 16), "the examples are others"),
        (Batches(dataset(3, 4, seed=1), 16), "the examples are others"),
        (Batches(dataset(3, 4), 17), "tokens is 17 and was 16"),
        (Batches(dataset(3, 4), 16, seed=1), "seed is 1 and was 0"),
        (Batches(dataset(3, 4), 16, rows=1), "rows is 1 and was None"),
    ],
)
def test_other_data_or_order_is_not_resumed(other, says):
    state = Batches(dataset(3, 4), 16).state(Position(0, 0))
    with pytest.raises(FileError, match=says):
        other.resume(state)


@pytest.mark.parametrize("at", [{"epoch": -1}, {"step": 1}, {"step": "0"}, {"epoch": None}])
def test_a_position_that_is_none(at):
    batches = Batches(dataset(3, 4), 16)
    with pytest.raises(InputError, match=next(iter(at))):
        batches.resume({**batches.state(Position()), **at})


@pytest.mark.parametrize(
    "options",
    [{"tokens": 0}, {"rows": 0}, {"micro": 0}, {"seed": -1}, {"seed": 2**64}, {"rows": 1, "micro": 2}],
)
def test_wrong_options(options):
    with pytest.raises(InputError, match=next(iter(options))):
        Batches(dataset(3), **{"tokens": 16, **options})


def test_no_examples():
    with pytest.raises(InputError, match="train has no examples"):
        Batches(dataset(), 16)
    with pytest.raises(InputError, match="no examples"):
        pack([])
