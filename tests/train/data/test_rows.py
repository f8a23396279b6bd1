"""Rows of files that people have, and of files that nobody should."""

import hashlib
import json
import os

import pytest

from trivet.errors import FileError, InputError
from trivet.train.data import Refused, Row, RowFile, rows

CHAT = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]}


def read(folder, *lines, name="data.jsonl", **options):
    data = b"\n".join(json.dumps(x).encode() if isinstance(x, dict) else x for x in lines)
    (folder / name).write_bytes(data)
    return list(RowFile(folder / name, **options))


@pytest.mark.parametrize(
    ("fields", "format"),
    [
        (CHAT, "messages"),
        ({"prompt": "a", "completion": "b"}, "completion"),
        ({"instruction": "a", "input": "", "output": "b", "text": "a b"}, "instruction"),
        ({"instruction": "a", "output": "b"}, "instruction"),
        ({"text": "a", "id": 5}, "text"),
    ],
)
def test_formats_are_found(fields, format, tmp_path):
    (row,) = read(tmp_path, fields)
    required, optional = rows.FORMATS[format]
    assert row == Row(1, format, {k: v for k, v in fields.items() if k in required + optional})


def test_a_told_format_is_used(tmp_path):
    (row,) = read(tmp_path, {"instruction": "a", "output": "b", "text": "c"}, format="text")
    assert row.fields == {"text": "c"}


def test_columns(tmp_path):
    columns = {"prompt": "question", "completion": "answer"}
    found = read(tmp_path, {"question": "a", "answer": "b"}, {"question": "a"}, columns=columns)
    assert found[0] == Row(1, "completion", {"prompt": "a", "completion": "b"})
    assert found[1] == Refused(2, "no column 'answer', which stands for 'completion'")
    for row in ({"prompt": "a", "completion": "b"}, {"text": "a"}, CHAT):
        (only,) = read(tmp_path, row, columns={"prompt": "q"})
        assert only == Refused(1, "no column 'q', which stands for 'prompt'")
    with pytest.raises(InputError, match="columns name 'question'"):
        RowFile(tmp_path / "x", columns={"question": "prompt"})
    with pytest.raises(InputError, match="format 'csv'"):
        RowFile(tmp_path / "x", format="csv")


REFUSED = [
    (b"nope", "invalid JSON: Expecting value at character 1"),
    (b'{"text": "a"', "invalid JSON"),
    (b'{"text": NaN}', "NaN is no number"),
    (b'{"text": 1' + b"0" * 5000 + b"}", "invalid JSON"),
    (b"[" * 100_000, "nested too deep"),
    (b'{"text": "\xff"}', "not UTF-8: byte 10 is 0xff"),
    (b'{"text": "\\ud800"}', "lone surrogate"),
    (b"[1]", "a list; wanted one JSON object a line"),
    (b"5", "a number"),
    (b"{}", "no field 'text'"),
    (b'{"text": 5}', "'text' is a number; wanted text"),
    (b'{"text": null}', "'text' is null"),
    (b'{"text": ""}', "'text' is empty"),
    (b'{"prompt": "a", "completion": "b"}', "it has the fields of 'completion', the file is 'text'"),
]


@pytest.mark.parametrize(("line", "reason"), REFUSED, ids=[r for _, r in REFUSED])
def test_a_bad_row_is_refused_with_its_line_and_the_rest_goes_on(line, reason, tmp_path):
    good, bad, last = read(tmp_path, {"text": "a"}, b"", line, {"text": "b"})
    assert (good.line, bad.line, last.line) == (1, 3, 4)
    assert isinstance(bad, Refused)
    assert reason in bad.reason


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (None, "a null; wanted a list"),
        ("hi", "a text; wanted a list"),
        ([], "the conversation is empty"),
        (["hi"], "message 0 is a text"),
        ([{"content": "a"}], "message 0 has the role None"),
        ([{"role": "human", "content": "a"}], "message 0 has the role 'human'; known: system"),
        ([{"role": ["user"], "content": "a"}], "message 0 has the role ['user']"),
        ([{"role": "user", "content": None}], "message 0 has a content that is a null"),
        ([{"role": "user", "content": [{"type": "text"}]}], "message 0 has a content that is a list"),
        ([{"role": "assistant"}], "message 0 has a content that is a null"),
    ],
)
def test_bad_conversations(messages, reason, tmp_path):
    _, bad = read(tmp_path, CHAT, {"messages": messages})
    assert reason in bad.reason


def test_an_assistant_may_call_a_tool_and_say_nothing(tmp_path):
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    good, bad = read(tmp_path, {"messages": [call], "tools": [{}]}, {"messages": [call], "tools": {}})
    assert good.fields["tools"] == [{}]
    assert "'tools' is a JSON object" in bad.reason


def test_a_first_row_of_no_format_says_what_it_has(tmp_path):
    bad, good = read(tmp_path, {"question": "a"}, {"text": "b"})
    assert "the row has 'question'; wanted one of: messages; prompt and completion" in bad.reason
    assert good.format == "text"


def test_a_line_too_long_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "MAX_LINE", 64)
    bad, good = read(tmp_path, {"text": "a" * (3 << 20)}, {"text": "b"}, format="text")
    assert bad == Refused(1, "the line is longer than 64 bytes")
    assert (good.line, good.fields["text"]) == (2, "b")


def test_windows_files(tmp_path):
    (tmp_path / "data.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n{"text": "b"}\r\n')
    assert [row.fields["text"] for row in RowFile(tmp_path / "data.jsonl")] == ["a", "b"]


def test_the_order_of_fields_does_not_change_a_row(tmp_path):
    one, two = read(tmp_path, b'{"prompt": "a", "completion": "b"}', b'{"completion":"b","prompt":"\\u0061"}')
    assert one.canonical == two.canonical


@pytest.mark.parametrize("piece", [1, 10, 25, 1000])
def test_plain_text_in_pieces_is_the_text(piece, tmp_path):
    text = "one\n\n  two\nthree\n\nfour é\r\nfive\n\n\n six seven eight nine\nten"
    (tmp_path / "book.txt").write_text(text, "utf-8", newline="")
    found = list(RowFile(tmp_path / "book.txt", piece=piece))
    assert "".join(row.fields["text"] for row in found) == text
    assert [row.opens for row in found] == [True] + [False] * (len(found) - 1)
    assert [row.closes for row in found] == [False] * (len(found) - 1) + [True]
    assert all(not row.fields["text"][0].isspace() for row in found)
    for row in found:
        assert text.split("\n")[row.line - 1].startswith(row.fields["text"].split("\n")[0])
    assert (len(found) == 1) == (piece == 1000)


def test_what_is_plain_text(tmp_path):
    assert read(tmp_path, b'{"text": "a"}', name="data")[0].fields == {"text": "a"}
    assert read(tmp_path, b"once", name="data")[0].fields == {"text": "once"}
    assert read(tmp_path, b'{"text": "a"}', name="a.jsonl", format="plain")[0].fields == {
        "text": '{"text": "a"}'
    }
    assert isinstance(read(tmp_path, b"once", name="a.jsonl")[0], Refused)
    assert read(tmp_path, b"", name="empty.txt") == []


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"a\nb\xff\n")
    for name, reason in (
        ("bad.txt", "line 2 is not UTF-8: byte 1 is 0xff"),
        ("gone", "No such file"),
        ("", "direct"),
    ):
        with pytest.raises(FileError, match=reason):
            list(RowFile(tmp_path / name))


def test_what_may_have_no_end_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    for path in (tmp_path / "pipe.jsonl", "/dev/zero"):
        with pytest.raises(FileError, match="is not a regular file"):
            list(RowFile(path))


def test_the_file_s_hash(tmp_path):
    (tmp_path / "data.jsonl").write_bytes(b'{"text": "a"}')
    file = RowFile(tmp_path / "data.jsonl")
    list(file)
    assert file.sha256 == hashlib.sha256(b'{"text": "a"}').hexdigest()
