"""Fetching, from a hub that stands in for the real one: whole, broken off, wrong, refused."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import hf_hub_download, scan_cache_dir
from stand_in import COMMIT, Hub, etag

from trivet.errors import FileError, HubError, InputError
from trivet.hub import cache as caches
from trivet.hub import fetch, transfer
from trivet.hub.names import Name

REPO = "me/small-GGUF"
BIG = np.random.default_rng(0).bytes(3 << 20)
OTHER = np.random.default_rng(1).bytes(5000)


@pytest.fixture
def ggufs(hub: Hub) -> Hub:
    hub.repos[REPO] = {"README.md": b"# small", "small-Q4_K_M.gguf": BIG, "small-Q8_0.gguf": OTHER}
    return hub


def blobs(cache: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in cache.glob("models--*/blobs/*")}


def test_a_gguf_is_fetched_whole_and_once(ggufs: Hub, cache: Path) -> None:
    came: list[int] = []
    path = fetch.pull(REPO, advance=came.append)
    assert path.read_bytes() == BIG
    assert path.name == "small-Q4_K_M.gguf"
    assert sum(came) == len(BIG)
    assert blobs(cache) == {etag(BIG): BIG}
    assert fetch.pull(f"{REPO}:q4_k_m") == path
    assert ggufs.asked == [("small-Q4_K_M.gguf", None)]


def test_the_library_finds_what_was_fetched_and_we_what_it_fetched(ggufs: Hub, cache: Path) -> None:
    """Both ways: the layout is the hub's own."""
    path = fetch.pull(REPO)
    [repo] = scan_cache_dir(cache).repos
    assert (repo.repo_id, repo.size_on_disk) == (REPO, len(BIG))
    assert not scan_cache_dir(cache).warnings
    theirs = hf_hub_download(REPO, "small-Q4_K_M.gguf", cache_dir=cache, endpoint=ggufs.url)
    assert (Path(theirs), len(ggufs.asked)) == (path, 1)
    other = hf_hub_download(REPO, "small-Q8_0.gguf", cache_dir=cache, endpoint=ggufs.url)
    assert caches.find(Name(REPO, "Q8_0")) == Path(other)


def test_a_token_goes_to_the_hub_and_not_to_its_store(ggufs: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    ggufs.gated = True
    monkeypatch.setenv("HF_TOKEN", "good")
    fetch.pull(REPO)
    assert ggufs.tokens == [None]


def test_a_folder_of_safetensors(hub: Hub) -> None:
    files = {name: name.encode() for name in ("config.json", "tokenizer.json", "model.safetensors")}
    hub.repos["me/folder"] = {**files, "pytorch_model.bin": b"pickle", "README.md": b"hi"}
    path = fetch.pull("me/folder")
    assert {p.name: p.read_bytes() for p in path.iterdir()} == files


def test_parts_are_fetched_together(hub: Hub) -> None:
    parts = {f"Q8_0/m-Q8_0-0000{i}-of-00002.gguf": b"x" * i for i in (1, 2)}
    hub.repos[REPO] = parts
    path = fetch.pull(REPO)
    assert path.name == "m-Q8_0-00001-of-00002.gguf"
    assert len(list(path.parent.iterdir())) == 2


def test_goes_on_where_it_was_broken_off(ggufs: Hub, cache: Path) -> None:
    ggufs.cut = 1 << 20
    with pytest.raises(HubError, match="pull again to go on"):
        fetch.pull(REPO)
    assert caches.find(Name(REPO)) is None
    [(name, kept)] = blobs(cache).items()
    assert name == etag(BIG) + ".incomplete"
    assert BIG.startswith(kept)
    assert len(kept) > 1 << 19
    ggufs.cut = None
    came: list[int] = []
    assert fetch.pull(REPO, advance=came.append).read_bytes() == BIG
    assert ggufs.asked[1] == ("small-Q4_K_M.gguf", f"bytes={len(kept)}-")
    assert came[0] == len(kept)
    assert sum(came) == len(BIG)


def test_tries_again_by_itself_as_long_as_bytes_come(ggufs: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "WAITS", (0.0,))
    ggufs.cut = 1 << 20
    assert fetch.pull(REPO).read_bytes() == BIG
    assert len(ggufs.asked) > 2


def test_a_hub_without_ranges_sends_the_whole_again(ggufs: Hub) -> None:
    ggufs.cut = 1 << 20
    with pytest.raises(HubError):
        fetch.pull(REPO)
    ggufs.cut, ggufs.ranges = None, False
    came: list[int] = []
    assert fetch.pull(REPO, advance=came.append).read_bytes() == BIG
    assert sum(came) == len(BIG)


def test_a_hub_that_stops_early(ggufs: Hub, cache: Path) -> None:
    ggufs.short = 1000
    with pytest.raises(HubError, match=f"stopped after 1000 of {len(BIG)} bytes"):
        fetch.pull(REPO)
    assert caches.find(Name(REPO)) is None
    ggufs.short = None
    assert fetch.pull(REPO).read_bytes() == BIG


@pytest.mark.parametrize("name", ["small-Q4_K_M.gguf", "README.md"])
def test_tampered_bytes_are_thrown_away(ggufs: Hub, cache: Path, name: str) -> None:
    """A file of LFS by its SHA-256, a small one by git's hash."""
    if name == "README.md":
        ggufs.repos[REPO] = {"config.json": b"{}", "model.safetensors": b"small"}
        name = "config.json"
    data = ggufs.repos[REPO][name]
    ggufs.sent[name] = data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(HubError, match=f"{name} .*do not hash to what the hub lists"):
        fetch.pull(REPO)
    assert blobs(cache) == {}
    assert caches.find(Name(REPO)) is None
    ggufs.sent.clear()
    fetch.pull(REPO)


def test_what_was_kept_of_other_bytes_is_found_wrong(ggufs: Hub, cache: Path) -> None:
    part = cache / "models--me--small-GGUF" / "blobs" / f"{etag(BIG)}.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 1000)
    with pytest.raises(HubError, match="do not hash"):
        fetch.pull(REPO)
    part.write_bytes(b"x" * (len(BIG) + 1))
    assert fetch.pull(REPO).read_bytes() == BIG


def test_more_bytes_than_listed(ggufs: Hub, cache: Path) -> None:
    ggufs.sent["small-Q8_0.gguf"] = OTHER + b"more"
    with pytest.raises(HubError, match="more bytes came than the 5000"):
        fetch.pull(f"{REPO}:Q8_0")
    assert set(blobs(cache).values()) == {b""}


def test_a_blob_that_was_cut_short_is_fetched_again(ggufs: Hub) -> None:
    path = fetch.pull(REPO)
    path.resolve().write_bytes(BIG[:100])
    assert fetch.pull(REPO).read_bytes() == BIG


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("README.md", {"rfilename": "../../evil.gguf"}),
        ("README.md", {"rfilename": "/etc/evil.gguf"}),
        ("README.md", {"rfilename": "a\\b.gguf"}),
        ("README.md", {"rfilename": 7}),
        ("small-Q4_K_M.gguf", {"lfs": {"sha256": "../x", "size": 1, "pointerSize": 1}}),
        ("small-Q4_K_M.gguf", {"lfs": None, "blobId": "x/../y"}),
        ("small-Q4_K_M.gguf", {"size": -1}),
        ("small-Q4_K_M.gguf", {"size": None}),
        ("small-Q4_K_M.gguf", {"size": "9"}),
    ],
)
def test_a_list_that_cannot_be_believed(ggufs: Hub, cache: Path, name: str, words: dict[str, object]) -> None:
    if "rfilename" in words:
        ggufs.repos[REPO] = {name: b"x" * 10}
    ggufs.listed[name] = words
    with pytest.raises(HubError, match=r"me/small-GGUF (lists|has no model)"):
        fetch.pull(REPO)
    assert not cache.exists()


def test_a_commit_that_is_none(ggufs: Hub) -> None:
    ggufs.commit = "../../elsewhere"
    with pytest.raises(HubError, match="as the commit"):
        fetch.pull(REPO)


def test_a_quantisation_that_is_not_there(ggufs: Hub) -> None:
    with pytest.raises(HubError, match="has no Q5_1; it has: Q4_K_M, Q8_0"):
        fetch.pull(f"{REPO}:Q5_1")


@pytest.mark.parametrize("token", [None, "of a stranger"])
def test_a_gated_repository_says_what_to_do(
    ggufs: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    """The hub answers 401 to nobody and 403 to somebody who has not agreed."""
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    ggufs.gated = True
    with pytest.raises(HubError, match=f"gated: accept its terms at {ggufs.url}/{REPO}, set HF_TOKEN"):
        fetch.pull(REPO)
    assert caches.find(Name(REPO)) is None


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (401, "refuses .*HF_TOKEN"),
        (403, "refuses .*HF_TOKEN"),
        (404, "answers 404"),
        (429, "answers 429"),
        (500, "answers 500"),
    ],
)
def test_a_hub_that_refuses(ggufs: Hub, status: int, why: str) -> None:
    ggufs.status = status
    with pytest.raises(HubError, match=why):
        fetch.pull(REPO)


def test_what_is_not_there_or_cannot_be_reached(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HubError, match="the hub has no me/nothing, or it is private"):
        fetch.pull("me/nothing")
    with pytest.raises(InputError, match="OWNER/REPO"):
        fetch.pull("nothing")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # the port to which nobody listens
    with pytest.raises(HubError, match=r"refused|connect"):
        fetch.pull(REPO)


def test_offline_takes_what_is_here(ggufs: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HubError, match="offline nothing is fetched"):
        fetch.pull(REPO, offline=True)
    path = fetch.pull(REPO)
    ggufs.close()
    assert fetch.pull(REPO, offline=True) == path
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch.pull(REPO) == path


def test_no_room(ggufs: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(cache.parent)._replace(free=1000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(HubError, match=f"needs {len(BIG)} more bytes .* 1000 are free"):
        fetch.pull(REPO)


LIMITED = """
import resource, signal, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
from trivet.hub import fetch
fetch.pull(sys.argv[1])
"""


def test_a_disk_that_fills_up_keeps_what_came(ggufs: Hub, cache: Path) -> None:
    """A limit on the size of files stands in for the full disk: the same calls fail."""
    done = subprocess.run([sys.executable, "-c", LIMITED, REPO], capture_output=True, text=True)
    assert "FileError" in done.stderr, done.stderr
    assert os.strerror(errno.EFBIG) in done.stderr
    assert "pull again to go on" in done.stderr
    [(name, kept)] = blobs(cache).items()
    assert name.endswith(".incomplete")
    assert BIG.startswith(kept)
    assert kept
    assert fetch.pull(REPO).read_bytes() == BIG


def test_ctrl_c_keeps_what_came(ggufs: Hub, cache: Path) -> None:
    def stop(n: int) -> None:
        if n and len(came) > 2:
            raise KeyboardInterrupt
        came.append(n)

    came: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        fetch.pull(REPO, advance=stop)
    [kept] = blobs(cache).values()
    assert 0 < len(kept) < len(BIG)
    assert fetch.pull(REPO).read_bytes() == BIG
    assert len(blobs(cache)) == 1


def test_two_at_once(ggufs: Hub, cache: Path) -> None:
    def other(n: int) -> None:
        if n and not refused:
            with pytest.raises(HubError, match="another process") as caught:
                fetch.pull(REPO)
            refused.append(caught.value)

    refused: list[BaseException] = []
    assert fetch.pull(REPO, advance=other).read_bytes() == BIG
    assert refused


def test_a_new_commit_leaves_the_old_quantisations_found(ggufs: Hub) -> None:
    old = fetch.pull(f"{REPO}:Q8_0")
    ggufs.commit = "beef" * 10
    ggufs.repos[REPO]["small-Q4_K_M.gguf"] = OTHER[::-1]
    new = fetch.pull(REPO)
    assert new.read_bytes() == OTHER[::-1]
    assert COMMIT not in str(new)
    assert caches.find(Name(REPO, "Q8_0")) == old


def test_a_missing_library_says_what_to_install(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(NotImplementedError, match=r"pip install 'trivet\[hub\]'"):
        fetch.pull(REPO)


def test_looking_up_a_name_imports_no_library(cache: Path) -> None:
    code = "import sys; from trivet.models.checkpoint import resolve\n"
    code += "try: resolve('a/b')\nexcept ValueError: pass\n"
    code += "assert not {'huggingface_hub', 'httpx', 'httpx2'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_disk_to_write(ggufs: Hub, cache: Path) -> None:
    cache.write_text("a file where the cache should be")
    with pytest.raises(FileError, match="pull again to go on"):
        fetch.pull(REPO)
