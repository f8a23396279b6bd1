"""What is in the cache: where it is, what is listed and found, what is removed."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from stand_in import COMMIT, Hub

import tiny_model
from command import ok, trivet
from trivet.errors import FileError, HubError
from trivet.hub import cache as caches
from trivet.hub import fetch
from trivet.hub.names import Name
from trivet.models.checkpoint import resolve

REPO = "me/small-GGUF"
DATA = {
    f"small-{quant}.gguf": np.random.default_rng(i).bytes(2000 + i)
    for i, quant in enumerate(("Q4_K_M", "Q8_0"))
}


@pytest.fixture
def filled(hub: Hub) -> Hub:
    hub.repos[REPO] = dict(DATA)
    hub.repos["me/folder"] = {"config.json": b"{}", "model.safetensors": b"w" * 100}
    for name in (REPO, f"{REPO}:Q8_0", "me/folder"):
        fetch.pull(name)
    return hub


def names() -> list[str]:
    return [held.name for held in caches.held()]


@pytest.mark.parametrize(
    ("given", "at"),
    [
        ({"HF_HUB_CACHE": "/x/c", "HF_HOME": "/y"}, "/x/c"),
        ({"HUGGINGFACE_HUB_CACHE": "/old"}, "/old"),
        ({"HF_HOME": "/y"}, "/y/hub"),
        ({"XDG_CACHE_HOME": "/z"}, "/z/huggingface/hub"),
        ({"HOME": "/h"}, "/h/.cache/huggingface/hub"),
        ({"HOME": "/h", "HF_HOME": "~/m"}, "/h/m/hub"),
    ],
)
def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, given: dict[str, str], at: str) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert caches.folder() == Path(at)


def test_what_is_listed(filled: Hub, cache: Path) -> None:
    found = {held.name: held for held in caches.held()}
    assert list(found) == ["me/folder", f"{REPO}:Q4_K_M", f"{REPO}:Q8_0"]
    assert [(h.kind, h.nbytes) for h in found.values()] == [
        ("safetensors", 102),
        ("Q4_K_M", 2000),
        ("Q8_0", 2001),
    ]
    assert all(held.path.exists() for held in found.values())
    blobs = cache / "models--me--small-GGUF" / "blobs"
    (blobs / "abc.incomplete").write_bytes(b"xyz")
    assert (REPO, "unfinished", 3) in [(h.name, h.kind, h.nbytes) for h in caches.held()]
    (cache / "models--one-word").mkdir()
    (cache / "datasets--me--rows").mkdir()
    (cache / "models--me--file").touch()
    assert len(names()) == 4


def test_an_empty_or_absent_cache(cache: Path) -> None:
    assert names() == []
    cache.mkdir()
    assert names() == []
    assert caches.find(Name(REPO)) is None


def test_names_stand_for_models(filled: Hub, cache: Path) -> None:
    at = cache / "models--me--small-GGUF" / "snapshots" / COMMIT
    assert resolve(REPO) == at / "small-Q4_K_M.gguf"
    assert resolve("ME/Small-gguf:q8_0") == at / "small-Q8_0.gguf"
    assert resolve("me/folder").is_dir()
    with pytest.raises(FileError, match="trivet pull me/small-GGUF:Q2_K fetches it"):
        resolve(f"{REPO}:Q2_K")
    with pytest.raises(FileError, match=r"known: smollm2-135m\)$"):
        resolve("me/absent.gguf")


def test_a_file_of_that_name_comes_first(
    filled: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / REPO).mkdir(parents=True)
    assert resolve(REPO) == Path(REPO)


def test_a_folder_without_all_its_shards_is_not_found(hub: Hub, cache: Path) -> None:
    shards = {f"model-0000{i}-of-00002.safetensors": b"w" * i for i in (1, 2)}
    hub.repos["me/folder"] = {"config.json": b"{}", "model.safetensors.index.json": b"{}"} | shards
    path = fetch.pull("me/folder")
    assert caches.find(Name("me/folder")) == path
    (path / "model-00002-of-00002.safetensors").unlink()
    assert caches.find(Name("me/folder")) is None
    assert names() == []


def test_a_link_to_nothing_is_not_found(filled: Hub, cache: Path) -> None:
    resolve(REPO).resolve().unlink()
    assert caches.find(Name(REPO, "Q4_K_M")) is None


def left(cache: Path) -> list[str]:
    return sorted(str(p.relative_to(cache)) for p in cache.rglob("*") if p.is_file() or p.is_symlink())


def test_one_quantisation_is_removed_with_its_blob(filled: Hub, cache: Path) -> None:
    before = left(cache)
    assert caches.size_of(f"{REPO}:q4_k_m") == 2000
    caches.remove(f"{REPO}:q4_k_m")
    gone = set(before) - set(left(cache))
    assert len(gone) == 2
    assert names() == ["me/folder", f"{REPO}:Q8_0"]
    caches.remove(f"{REPO}:Q8_0")
    assert not (cache / "models--me--small-GGUF").exists()
    assert names() == ["me/folder"]


def test_a_repository_is_removed_whole(filled: Hub, cache: Path) -> None:
    (cache / "models--me--small-GGUF" / "blobs" / "abc.incomplete").write_bytes(b"xyz")
    assert caches.size_of(REPO) == 2000 + 2001 + 3 + 40  # and the name of the commit
    caches.remove(REPO)
    assert not (cache / "models--me--small-GGUF").exists()
    assert (cache / "models--me--folder").exists()


def test_a_blob_that_another_name_needs_stays(filled: Hub, cache: Path) -> None:
    at = cache / "models--me--small-GGUF" / "snapshots"
    (at / ("f" * 40)).mkdir()
    (at / ("f" * 40) / "renamed-F16.gguf").symlink_to(resolve(REPO).resolve())
    caches.remove(f"{REPO}:Q4_K_M")
    assert (at / ("f" * 40) / "renamed-F16.gguf").read_bytes() == DATA["small-Q4_K_M.gguf"]


def test_nothing_outside_the_cache_is_removed(filled: Hub, cache: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "model.gguf").write_bytes(b"mine")
    snapshot = resolve(REPO).parent
    (snapshot / "mine-F16.gguf").symlink_to(precious / "model.gguf")
    (snapshot / "folder").symlink_to(precious)
    caches.remove(f"{REPO}:F16")
    assert (precious / "model.gguf").read_bytes() == b"mine"
    caches.remove(REPO)
    assert (precious / "model.gguf").read_bytes() == b"mine"
    (cache / "models--me--linked").symlink_to(precious)
    with pytest.raises(HubError, match="is not in"):
        caches.remove("me/linked")
    assert (precious / "model.gguf").read_bytes() == b"mine"


def test_what_is_not_there_is_not_removed(filled: Hub) -> None:
    with pytest.raises(HubError, match="is not in"):
        caches.remove("me/absent")
    with pytest.raises(HubError, match="of it there is: Q4_K_M, Q8_0"):
        caches.remove(f"{REPO}:Q2_K")


def test_the_verbs(hub: Hub, cache: Path, tmp_path: Path) -> None:
    hub.repos["me/tiny-GGUF"] = {"tiny-F32.gguf": tiny_model.write(tmp_path / "m.gguf").read_bytes()}
    shown = ok("pull", "me/tiny-GGUF")
    assert 'trivet run me/tiny-GGUF:F32 "' in shown
    assert "me/tiny-GGUF:F32  F32" in ok("list")
    assert ok("tokenize", "me/tiny-GGUF", "hell")
    hub.close()
    assert ok("pull", "--offline", "me/tiny-GGUF:f32").startswith("me/tiny-GGUF:f32 is in")
    asked = trivet("rm", "me/tiny-GGUF")
    assert (asked.returncode, "give --yes" in asked.stderr) == (2, True)
    assert ok("rm", "me/tiny-GGUF:F32", "--yes").startswith("removed me/tiny-GGUF:F32: ")
    assert not list(cache.glob("models--*"))
    failed = trivet("pull", "me/tiny-GGUF")
    assert failed.returncode == 1
    assert failed.stderr.startswith("trivet: [pull] me/tiny-GGUF: ")
    assert failed.stderr.count("\n") == 1


def test_the_verb_is_stopped_and_goes_on(hub: Hub, cache: Path) -> None:
    hub.repos[REPO] = {"small-Q8_0.gguf": np.random.default_rng(0).bytes(4 << 20)}
    hub.pause = 0.05
    verb = [sys.executable, "-m", "trivet.cli.main", "pull", REPO]
    with subprocess.Popen(verb, stderr=subprocess.PIPE, text=True) as running:
        while not sum(blob.stat().st_size for blob in cache.glob("*/blobs/*.incomplete")):
            assert running.poll() is None
            time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        _, told = running.communicate()
    assert running.returncode == 130
    assert "what came is kept: pull again to go on" in told
    assert "Traceback" not in told
    hub.pause = 0
    ok("pull", REPO)
    assert hub.asked[-1][1] is not None


@pytest.mark.parametrize(
    "says", [{"gguf": {"architecture": "rwkv9"}}, {"gguf": {"architecture": "llama"}}, {}]
)
def test_the_verb_says_beforehand_what_cannot_be_run(hub: Hub, says: dict[str, object]) -> None:
    hub.repos[REPO], hub.says = dict(DATA), says
    done = trivet("pull", REPO)
    assert done.returncode == 0
    assert ("cannot run the architecture 'rwkv9'; known: gemma2, " in done.stderr) == ("rwkv9" in str(says))


def test_links_that_cannot_be_made_become_files(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    hub.repos[REPO] = dict(DATA)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "symlink_to", refused)
        path = fetch.pull(REPO)
        assert fetch.pull(REPO) == path
    assert len(hub.asked) == 1
    assert not path.is_symlink()
    assert path.read_bytes() == DATA["small-Q4_K_M.gguf"]
    caches.remove(f"{REPO}:Q4_K_M")
    assert not left(cache)
