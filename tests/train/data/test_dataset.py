"""A file becomes data sets, and whatever does not is counted."""

import json

import pytest
from families import CHATML, MISTRAL, TOKENS, source, spelled

from trivet.errors import FileError
from trivet.train.data import Batches, Renderer, load, refuse_overlap
from trivet.train.data.check import check, counts, pieces, plain


@pytest.fixture(scope="module")
def chatml(tmp_path_factory):
    return source(tmp_path_factory.mktemp("chatml"), CHATML, "<|im_end|>")


def write(folder, *rows, name="data.jsonl"):
    path = folder / name
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows), "utf-8")
    return path


def asks(question, answer):
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def test_examples_know_their_lines(chatml, tmp_path):
    path = write(
        tmp_path, asks("a", "one"), "", {"messages": [{"role": "user", "content": "b"}]}, asks("c", "two")
    )
    loaded = load(path, Renderer(chatml))
    data = loaded.splits["train"]
    assert (len(data), data.lines.tolist()) == (2, [1, 4])
    assert [spelled(chatml.tokenizer, data[i].ids[data[i].trained]) for i in range(2)] == [
        "one<|im_end|>",
        "two<|im_end|>",
    ]
    assert data.targets == 8
    assert data.positions == sum(data[i].length for i in range(2))
    report = loaded.report
    assert (report.rows, report.examples, report.untrained, report.left_out) == (3, 2, 1, [3])
    assert report.notes() == ["1 row left out, with nothing to train on"]


def test_a_bad_row_stops_with_its_line_or_is_counted(chatml, tmp_path):
    path = write(tmp_path, asks("a", "one"), "nope", asks("b", "two"))
    with pytest.raises(FileError, match=r"data\.jsonl line 2: invalid JSON"):
        load(path, Renderer(chatml))
    loaded = load(path, Renderer(chatml), skip_refused=True)
    assert len(loaded.splits["train"]) == 2
    assert [(r.line, r.reason[:12]) for r in loaded.report.refusals] == [(2, "invalid JSON")]


def test_a_row_that_cannot_be_rendered_has_its_line(chatml, tmp_path):
    system = {"messages": [{"role": "system", "content": "x"}, *asks("a", "b")["messages"]]}
    path = write(tmp_path, asks("a", "one"), system)
    with pytest.raises(FileError, match=r"line 2: .*the template refuses these messages: no system"):
        load(path, Renderer(source(tmp_path, MISTRAL, "</s>", "<s>")))
    with pytest.raises(FileError, match=r"line 1: \[data\] the model has no chat template"):
        load(path, Renderer(source(tmp_path, None, "</s>")))


def test_what_is_cut_is_told(chatml, tmp_path):
    path = write(tmp_path, asks("a", "x" * 500), asks("a" * 500, "b"))
    loaded = load(path, Renderer(chatml, 100))
    report = loaded.report
    assert (report.cut, report.examples, report.untrained) == (2, 1, 1)
    assert report.cut_tokens > 800
    assert f"2 rows cut at the length, {report.cut_tokens} tokens lost" in report.notes()


def test_duplicates_are_counted_and_kept(chatml, tmp_path):
    path = write(tmp_path, asks("a", "b"), asks("a", "b"), asks("A", "b!"), asks("c", "d"))
    loaded = load(path, Renderer(chatml))
    report = loaded.report
    assert (report.duplicates, report.near_duplicates, report.examples) == (1, 1, 4)
    assert report.twins == [(2, 1), (3, 1)]


def test_splits_of_a_file_share_nothing(chatml, tmp_path):
    rows = [
        asks(f"q {i % 60}" + "?" * (i // 60), "a") for i in range(180)
    ]  # each three times, but for punctuation
    loaded = load(write(tmp_path, *rows), Renderer(chatml), splits={"train": 0.7, "validation": 0.3}, seed=1)
    train, validation = loaded.splits["train"], loaded.splits["validation"]
    assert len(train) + len(validation) == 180
    assert {(line - 1) % 60 for line in train.lines}.isdisjoint(
        {(line - 1) % 60 for line in validation.lines}
    )
    again = load(
        write(tmp_path, *reversed(rows)), Renderer(chatml), splits={"train": 0.7, "validation": 0.3}, seed=1
    )
    assert {181 - line for line in again.splits["train"].lines} == set(train.lines.tolist())


def test_a_split_without_rows_is_an_error(chatml, tmp_path):
    path = write(tmp_path, asks("a", "b"))
    with pytest.raises(FileError, match=r"1 rows, and no example for (train|validation)"):
        load(path, Renderer(chatml), splits={"train": 0.5, "validation": 0.5})
    with pytest.raises(FileError, match="0 rows, and no example"):
        load(write(tmp_path, name="empty.jsonl"), Renderer(chatml))


def test_two_files_that_share_rows_are_refused(chatml, tmp_path):
    train = load(write(tmp_path, asks("a", "b"), asks("c", "d")), Renderer(chatml))
    test = load(write(tmp_path, asks("e", "f"), asks("C", "d"), name="test.jsonl"), Renderer(chatml))
    with pytest.raises(FileError, match=r"test\.jsonl shares 1 row with .*data\.jsonl"):
        refuse_overlap(train.index, test.index)


def test_a_file_edited_in_between_is_not_resumed(chatml, tmp_path):
    batches = Batches(
        load(write(tmp_path, asks("a", "b"), asks("c", "d")), Renderer(chatml)).splits["train"], 200
    )
    (_, _), *_ = batches.walk(1)
    state = batches.state(next(batches.walk(1))[0])
    for rows in ((asks("a", "b"), asks("c", "e")), (asks("a", "b"), asks("c", "d"), "")):
        edited = Batches(load(write(tmp_path, *rows), Renderer(chatml)).splits["train"], 200)
        with pytest.raises(FileError, match="the data file was changed"):
            edited.resume(state)
    same = write(tmp_path, asks("a", "b"), asks("c", "d"))
    with pytest.raises(FileError, match="the examples are others"):
        Batches(load(same, Renderer(chatml, train_on="all")).splits["train"], 200).resume(state)


def test_plain_text_is_trained_whole(tmp_path):
    made_by = source(tmp_path, None, "</s>", "<s>")
    text = "".join(f"Line {i} of a book.\n" for i in range(3000))
    (tmp_path / "book.txt").write_text(text)
    loaded = load(tmp_path / "book.txt", Renderer(made_by, 100))
    data = loaded.splits["train"]
    rows = loaded.report.rows
    assert loaded.report.notes() == [f"{rows} rows of text longer than the length, in windows, nothing lost"]
    assert len(set(data.lines.tolist())) > 2  # several pieces
    targets = [int(t) for i in range(len(data)) for t in data[i].ids[1:]]
    pieces_begun = len(set(data.lines.tolist())) - 1  # a piece's first token follows nothing
    assert len(targets) == len(text) + 1 - pieces_begun
    assert targets.count(TOKENS.index("</s>")) == 1


def test_check_reads_to_the_end(chatml, tmp_path):
    one = write(tmp_path, asks("a", "b"), "nope", asks("c", "d"))
    two = write(tmp_path, asks("a", "b"), name="two.jsonl")
    found = check([one, two], Renderer(chatml))
    assert not found.clean
    told = json.loads(json.dumps(plain(found)))
    assert [f["examples"] for f in told["files"]] == [2, 1]
    assert told["overlaps"] == [{"first": str(one), "second": str(two), "exact": [[1, 1]], "normal": []}]
    sizes = [len(found.files[0].splits["train"][i].ids) for i in range(2)]
    tokens = {
        "min": min(sizes),
        "median": sum(sizes) / 2,
        "max": max(sizes),
        "total": sum(sizes),
        "trained": 4,
    }
    assert told["files"][0]["tokens"] == tokens == counts(found.files[0].splits["train"])
    assert check([two], Renderer(chatml)).clean


def test_pieces_say_what_is_trained(chatml, tmp_path):
    data = load(write(tmp_path, asks("a", "é🦙")), Renderer(chatml)).splits["train"]
    found = pieces(data[0], chatml.tokenizer)
    assert [trained for _, trained in found] == [False, True]
    assert found[1][0] == "é🦙<|im_end|>"
