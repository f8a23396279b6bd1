"""The hub's cache on this machine: what is in it, where, and how it is removed. Plain files, no library.

  <cache>/models--OWNER--REPO/
    refs/main                 the commit that "main" was when last fetched, 40 hex digits
    snapshots/<commit>/...    the repository's files by their names: links to blobs (or the files themselves,
                              where links cannot be)
    blobs/<etag>              their bytes; the etag is the SHA-256 of a large file, git's SHA-1 of a small one
    blobs/<etag>.incomplete   what has come of one so far
  <cache>/.locks/models--OWNER--REPO/

(https://huggingface.co/docs/huggingface_hub/guides/manage-cache)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trivet.errors import FileError, HubError
from trivet.hub.names import Choice, Name, choose, parsed, quantisations

_SHARD = re.compile(r".+-\d{5}-of-(\d{5})\.safetensors", re.ASCII)


@dataclass(frozen=True, slots=True)
class Held:
    """A model in the cache. `path` is what is opened: the folder, or the first GGUF file. `kind` is its
    quantisation, "safetensors", or "unfinished" for what was not fetched to the end."""

    name: str
    kind: str
    nbytes: int
    path: Path


def folder() -> Path:
    """Where the cache is: HF_HUB_CACHE, or HF_HOME/hub, or ~/.cache/huggingface/hub."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return Path(os.path.expandvars(os.environ[variable])).expanduser()
    home = os.environ.get("HF_HOME")
    if not home:
        home = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(os.path.expandvars(home)).expanduser() / "hub"


def repository(repo: str) -> Path:
    """The folder of a repository, whether it is there or not; case does not matter where it is."""
    name = "models--" + repo.replace("/", "--")
    exact = folder() / name
    if exact.is_dir():
        return exact
    return next((path for path in _repositories() if path.name.lower() == name.lower()), exact)


def _repositories() -> list[Path]:
    try:
        found = [path for path in folder().iterdir() if path.name.startswith("models--") and path.is_dir()]
    except OSError:
        return []
    return sorted(path for path in found if path.name.count("--") >= 2)


def _repo(path: Path) -> str:
    return path.name.removeprefix("models--").replace("--", "/", 1)


def _main(ref: Path) -> str:
    try:
        if not ref.is_file():
            return ""
        with ref.open("rb") as file:
            return file.read(100).decode("ascii", "replace").strip()
    except OSError:
        return ""


def snapshots(path: Path) -> list[Path]:
    """A repository's snapshots: that of main first, then the latest first."""
    main = _main(path / "refs" / "main")
    try:
        inside = [p for p in (path / "snapshots").iterdir() if p.is_dir()]
        found = [(p.name == main, p.stat().st_mtime, p) for p in inside]
    except OSError:
        return []
    return [p for _, _, p in sorted(found, reverse=True)]


def files_of(snapshot: Path) -> list[str]:
    """Names of the files that are there, with / between folders. A link whose blob is gone is not there."""
    found = []
    for at, _, names in os.walk(snapshot):
        inside = Path(at).relative_to(snapshot)
        found += [(inside / name).as_posix() for name in names if (Path(at) / name).is_file()]
    return sorted(found)


def find(name: Name) -> Path | None:
    """The file or folder of a model that was fetched, or None."""
    found = _find(name)
    return found[1] if found else None


def _find(name: Name) -> tuple[Choice, Path] | None:
    for snapshot in snapshots(repository(name.repo)):
        try:
            choice = choose(name, files_of(snapshot))
        except HubError:  # not in this snapshot
            continue
        if path := _opened(snapshot, choice):
            return choice, path
    return None


def _opened(snapshot: Path, choice: Choice) -> Path | None:
    """What is opened of a choice; None if some of its weights are missing."""
    if choice.quant is not None:
        return snapshot / choice.files[0]
    shards = [int(match[1]) for file in choice.files if (match := _SHARD.fullmatch(file))]
    return snapshot if not shards or len(shards) == shards[0] else None


def held() -> Iterator[Held]:
    """Every model in the cache that trivet could open, by name, and what is unfinished."""
    for path in _repositories():
        seen: set[str | None] = set()
        for snapshot in snapshots(path):
            files = files_of(snapshot)
            for choice in _choices(_repo(path), files):
                at = _opened(snapshot, choice)
                if at is None or choice.quant in seen:
                    continue
                seen.add(choice.quant)
                nbytes = sum((snapshot / file).stat().st_size for file in choice.files)
                name = Name(_repo(path), choice.quant)
                yield Held(str(name), choice.quant or "safetensors", nbytes, at)
        unfinished = [blob for blob in (path / "blobs").glob("*.incomplete") if blob.is_file()]
        if unfinished:
            nbytes = sum(blob.stat().st_size for blob in unfinished)
            yield Held(_repo(path), "unfinished", nbytes, path / "blobs")


def _choices(repo: str, files: list[str]) -> list[Choice]:
    found = [Choice(label, parts) for label, parts in quantisations(files).items()]
    try:
        whole = choose(Name(repo), files)
    except HubError:
        return found
    return [whole, *found] if whole.quant is None else found


def size_of(name: str) -> int:
    """Bytes that `remove` would free; raises as it does."""
    return sum(file.lstat().st_size for file in _removed(name)[1] if not file.is_symlink())


def remove(name: str) -> None:
    """Removes a model from the cache, in every snapshot, with the blobs that nothing else names. Without a
    quantisation, all of the repository goes, with what is unfinished. Raises HubError if nothing of that name
    is there."""
    path, files = _removed(name)
    coming = [file for file in files if file.name.endswith(".incomplete")]
    try:
        if any(map(_is_fetched, coming)):
            raise HubError(f"[rm] {name} is being fetched by another process")
        for file in files:
            file.unlink()
        _prune(path / "snapshots")
        if not snapshots(path) and not any((path / "blobs").glob("*.incomplete")):
            shutil.rmtree(path)  # does not follow links
            shutil.rmtree(path.parent / ".locks" / path.name, ignore_errors=True)
    except OSError as error:
        raise FileError(f"[rm] {error.filename or path}: {error.strerror}") from None


def _is_fetched(partial: Path) -> bool:
    """Whether a process is fetching what comes there."""
    if not partial.is_file():
        return False
    with contextlib.suppress(FileNotFoundError), partial.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks
            pass
    return False


def _removed(name: str) -> tuple[Path, list[Path]]:
    """A repository's folder, and the files in it that go."""
    wanted = parsed("rm", name)
    path = repository(wanted.repo)
    if path.is_symlink() or not path.is_dir():
        raise HubError(f"[rm] {name} is not in {folder()}; trivet list shows what is")
    for inside in (path / "snapshots", path / "blobs", *snapshots(path)):
        if inside.is_symlink():
            raise HubError(f"[rm] {inside} is a link to another folder, in which nothing is removed")
    if wanted.quant is None:
        return path, [Path(at) / file for at, _, names in os.walk(path) for file in names]
    return path, _freed(path, _pointers(path, wanted))


def _pointers(path: Path, name: Name) -> list[Path]:
    """A model's files in the snapshots. Raises HubError if there are none."""
    found: list[Path] = []
    there: set[str] = set()
    for snapshot in snapshots(path):
        ggufs = quantisations(files_of(snapshot))
        there |= set(ggufs)
        for label, files in ggufs.items():
            if name.quant is not None and label.lower() == name.quant.lower():
                found += [snapshot / file for file in files]
    if not found:
        raise HubError(f"[rm] {name} is not in {folder()}; of it there is: {', '.join(sorted(there)) or '-'}")
    return found


def _freed(path: Path, pointers: list[Path]) -> list[Path]:
    """Pointers, and the repository's own blobs that no other file of it points to."""
    blobs = os.path.realpath(path / "blobs")
    others: set[str] = set()
    for snapshot in snapshots(path):
        others |= {
            os.path.realpath(p) for file in files_of(snapshot) if (p := snapshot / file) not in pointers
        }
    targets = {os.path.realpath(p) for p in pointers if p.is_symlink()}
    inside = {Path(t) for t in targets - others if os.path.dirname(t) == blobs}
    return [*pointers, *sorted(inside)]


def _prune(folder: Path) -> None:
    """Removes folders that hold nothing any more."""
    for at, _, _ in os.walk(folder, topdown=False):
        if not os.listdir(at):
            os.rmdir(at)
