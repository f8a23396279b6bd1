"""Hubs that lie and caches that others have been at: a typed error, no hang, and nothing touched outside."""

import gzip
import os
from pathlib import Path

import pytest
from stand_in import COMMIT, Hub

from trivet.errors import FileError, HubError, InputError
from trivet.hub import cache as caches
from trivet.hub import fetch, transfer
from trivet.hub.names import Name

REPO = "me/small-GGUF"
BYTES = b"x" * 5000


@pytest.fixture
def small(hub: Hub) -> Hub:
    hub.repos[REPO] = {"m-Q4_K_M.gguf": BYTES}
    return hub


@pytest.fixture
def at(small: Hub, cache: Path) -> Path:
    """The repository's folder in the cache, with the model in it."""
    fetch.pull(REPO)
    return cache / "models--me--small-GGUF"


@pytest.mark.parametrize("name", ["a\ud800", "\udcff", "\x1b[2J", "a\nb", "a\0b", "a\u202eb"])
def test_names_that_are_no_names(hub: Hub, cache: Path, name: str) -> None:
    hub.repos[REPO] = {f"{name}-Q4_K_M.gguf": BYTES}
    with pytest.raises(HubError, match="me/small-GGUF lists"):
        fetch.pull(REPO)
    assert not cache.exists()


@pytest.mark.parametrize(
    "says",
    [{"siblings": 7}, {"siblings": [None]}, {"siblings": [{}]}, {"safetensors": 7}, {"lastModified": "x"}],
)
def test_answers_of_another_form(small: Hub, cache: Path, says: dict[str, object]) -> None:
    small.says = says
    with pytest.raises(HubError, match="or its answer, is malformed"):
        fetch.pull(REPO)
    assert not cache.exists()


def test_a_name_that_the_library_refuses(small: Hub) -> None:
    with pytest.raises(InputError, match=r"is no name for the hub: .*maximum length"):
        fetch.pull("a/" + "b" * 120)


def test_a_token_that_cannot_be_sent(small: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "geheim-é")
    with pytest.raises(HubError, match="malformed") as caught:
        fetch.pull(REPO)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://x/", "http://[::1", "data:,x", "", None])
def test_redirects_to_nowhere(
    small: Hub, cache: Path, location: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(self, path: str) -> None:
        self.answer(302, b"", {"Location": self.path if location is None else location})

    monkeypatch.setattr(small.server.RequestHandlerClass, "resolve", resolve)
    with pytest.raises(HubError, match="failed:"):
        fetch.pull(REPO)
    assert [path.read_bytes() for path in cache.glob("*/blobs/*")] == [b""]


def test_what_came_packed_is_not_unpacked(small: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(self, path: str) -> None:
        self.answer(200, gzip.compress(bytes(5000)), {"Content-Encoding": "gzip"})

    monkeypatch.setattr(small.server.RequestHandlerClass, "resolve", resolve)
    with pytest.raises(HubError, match=f"stopped after {len(gzip.compress(bytes(5000)))} of 5000"):
        fetch.pull(REPO)


def test_headers_without_an_end(small: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(self, path: str) -> None:
        self.answer(200, BYTES, {"X": "y" * 3_000_000})

    monkeypatch.setattr(small.server.RequestHandlerClass, "resolve", resolve)
    with pytest.raises(HubError, match="failed:"):
        fetch.pull(REPO)


def test_a_hub_that_falls_silent(small: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "SILENCE", 0.1)
    small.pause, small.repos[REPO] = 2.0, {"m-Q4_K_M.gguf": BYTES * 40}
    with pytest.raises(HubError, match="what came is kept"):
        fetch.pull(REPO)


def test_nothing_is_removed_while_it_is_fetched(small: Hub) -> None:
    refused = []

    def remove(n: int) -> None:
        if n and not refused:
            with pytest.raises(HubError, match=r"\[rm\] me/small-GGUF is being fetched") as caught:
                caches.remove(REPO)
            refused.append(caught.value)

    assert fetch.pull(REPO, advance=remove).read_bytes() == BYTES
    assert refused


def test_what_another_began_does_not_get_the_name(small: Hub, cache: Path) -> None:
    def replaced(n: int) -> None:  # by who knows nothing of locks
        for part in cache.glob("*/blobs/*.incomplete") if n else ():
            part.unlink()
            part.write_bytes(b"begun")

    with pytest.raises(HubError, match="was removed while it was fetched"):
        fetch.pull(REPO, advance=replaced)
    assert [path.suffix for path in cache.glob("*/blobs/*")] == [".incomplete"]


@pytest.mark.parametrize("inside", ["snapshots", f"snapshots/{COMMIT}", "blobs"])
@pytest.mark.parametrize("name", [REPO, f"{REPO}:Q4_K_M"])
def test_nothing_is_removed_through_a_link_to_a_folder(
    at: Path, tmp_path: Path, inside: str, name: str
) -> None:
    (tmp_path / "mine" / "empty").mkdir(parents=True)
    (tmp_path / "mine" / "m-Q4_K_M.gguf").write_bytes(BYTES)
    (at / inside).rename(tmp_path / "aside")
    (at / inside).symlink_to(tmp_path / "mine")
    with pytest.raises(HubError, match=r"is a link to another folder|is not in"):
        caches.remove(name)
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {"empty", "m-Q4_K_M.gguf"}


@pytest.mark.parametrize("what", ["pipe", "endless", "folder"])
def test_a_ref_that_is_no_file(at: Path, what: str) -> None:
    ref = at / "refs" / "main"
    ref.unlink()
    {"pipe": os.mkfifo, "endless": lambda ref: ref.symlink_to("/dev/zero"), "folder": os.mkdir}[what](ref)
    assert caches.find(Name(REPO))
    assert len([*caches.held()]) == 1
    with pytest.raises(FileError, match="not a regular file"):
        fetch.pull(REPO)
    caches.remove(REPO)
    assert not at.exists()


def test_rests_that_are_no_files(at: Path) -> None:
    os.mkfifo(at / "blobs" / "a.incomplete")
    (at / "blobs" / "b.incomplete").symlink_to("nowhere")
    (at / "snapshots" / "loop").symlink_to("loop")
    (at / "snapshots" / "file").write_text("x")
    assert [held.kind for held in caches.held()] == ["Q4_K_M"]
    caches.remove(REPO)
    assert not at.exists()
