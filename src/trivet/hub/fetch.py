"""Fetching a model from a hub into its cache (the layout is in cache.py): resumable, every byte hashed.

huggingface_hub asks the hub, with the user's token, endpoint and proxies. Its own download
throws away what it has of a file when it stops (since version 1) and checks only the size of what came; so
transfer.py moves the bytes. A file is in the cache under its name only once its hash was found right.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivet.errors import FileError, HubError
from trivet.formats.common import written_aside
from trivet.hub import cache
from trivet.hub.names import Name, choose, parsed
from trivet.hub.transfer import Advance, RemoteFile, endpoint, explained, fetch_blob, library, partial_of

_COMMIT = re.compile(r"[0-9a-f]{40}", re.ASCII)
_ETAG = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}", re.ASCII)
_TRUE = ("1", "ON", "YES", "TRUE")
TIMEOUT = 30.0  # seconds for the hub to answer what it has


@dataclass(frozen=True, slots=True)
class Remote:
    """A model as the hub has it: the files of `name` at one commit. `architecture` is what the hub says of
    it: GGUF's general.architecture, or the model_type of config.json; None if it says nothing."""

    name: Name
    commit: str
    files: tuple[RemoteFile, ...]
    architecture: str | None = None

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.files)


def pull(name: str, *, offline: bool = False, advance: Advance = lambda _: None) -> Path:
    """Fetches a model, OWNER/REPO[:QUANT], and gives the path to open. What is here already is not fetched
    again, and what was interrupted goes on where it stopped.

    offline: do not ask the hub: the model must be here. So does HF_HUB_OFFLINE=1.
    advance: is told of bytes that came; of fewer than none where some have to come again.
    Raises InputError for what is no name, UnsupportedError without huggingface_hub, and HubError, which says
    what to do: not found, gated, no such quantisation, broken off, no room, or bytes that are not those the
    hub lists."""
    wanted = parsed("pull", name)
    if is_offline(offline):
        found = cache.find(wanted)
        if found is None:
            raise HubError(f"[pull] {name} is not in {cache.folder()}, and offline nothing is fetched")
        return found
    return fetch(remote(name), advance)


def is_offline(asked: bool) -> bool:
    """Whether the hub is not to be asked: by an option, or by HF_HUB_OFFLINE=1."""
    return asked or os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE


def remote(name: str) -> Remote:
    """What the hub has under a name; raises as `pull` does."""
    wanted = parsed("pull", name)
    hub = library()
    with explained(wanted):
        info = hub.HfApi(endpoint=endpoint()).model_info(wanted.repo, files_metadata=True, timeout=TIMEOUT)
    commit = info.sha
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise HubError(f"[pull] the hub gives {commit!r:.80} as the commit of {wanted.repo}")
    listed = {
        sibling.rfilename: sibling for sibling in info.siblings or [] if isinstance(sibling.rfilename, str)
    }
    choice = choose(wanted, listed)
    files = tuple(_listed(wanted, listed[file]) for file in choice.files)
    facts, key = (info.config, "model_type") if choice.quant is None else (info.gguf, "architecture")
    said = facts.get(key) if isinstance(facts, dict) else None
    return Remote(Name(wanted.repo, choice.quant), commit, files, said if isinstance(said, str) else None)


def _listed(name: Name, sibling: Any) -> RemoteFile:
    """A file of the hub's list, whose every word is checked before it becomes part of a path."""
    lfs = sibling.lfs
    etag = lfs.sha256 if lfs is not None else sibling.blob_id
    parts = sibling.rfilename.split("/")
    bad = any(part in ("", ".", "..") or "\\" in part or not part.isprintable() for part in parts)
    if bad or not isinstance(etag, str) or not _ETAG.fullmatch(etag):
        raise HubError(f"[pull] {name.repo} lists {sibling.rfilename!r:.80} with the hash {etag!r:.80}")
    if type(sibling.size) is not int or sibling.size < 0:
        raise HubError(
            f"[pull] {name.repo} lists {sibling.rfilename!r:.80} with the size {sibling.size!r:.80}"
        )
    return RemoteFile(sibling.rfilename, sibling.size, etag)


def fetch(found: Remote, advance: Advance = lambda _: None) -> Path:
    """Fetches what `remote` found; the snapshot is there whole, or what came of it waits to be continued."""
    at = cache.repository(found.name.repo)
    try:
        _room(at, found)
        for file in found.files:
            blob, pointer = at / "blobs" / file.etag, at / "snapshots" / found.commit / file.name
            if any(path.exists() and path.stat().st_size == file.nbytes for path in (blob, pointer)):
                advance(file.nbytes)
            else:
                fetch_blob(found.name, found.commit, file, blob, advance)
        for file in found.files:
            _point(at / "snapshots" / found.commit / file.name, at / "blobs" / file.etag)
        _write_ref(at, found.commit)
    except OSError as error:
        where = f"{error.filename or cache.folder()}: {error.strerror or error}"
        raise FileError(f"[pull] {found.name}: {where}; what came is kept: pull again to go on") from None
    path = cache.find(found.name)
    if path is None:
        raise HubError(f"[pull] {found.name} was fetched, and its weights are not complete in the repository")
    return path


def _room(at: Path, found: Remote) -> None:
    """Makes the folder; raises HubError if the disk has no room for what is missing."""
    (at / "blobs").mkdir(parents=True, exist_ok=True)
    missing = found.nbytes
    for file in found.files:
        for blob in (at / "blobs" / file.etag, partial_of(at / "blobs" / file.etag)):
            missing -= blob.stat().st_size if blob.exists() else 0
    free = shutil.disk_usage(at).free
    if missing > free:
        raise HubError(
            f"[pull] {found.name} needs {missing} more bytes in {cache.folder()}, and {free} are free there;"
            " HF_HUB_CACHE=FOLDER fetches to another disk"
        )


def _point(pointer: Path, blob: Path) -> None:
    """The name of a file in a snapshot: a link to its blob, or the blob itself where links cannot be."""
    if not blob.exists():
        return
    pointer.parent.mkdir(parents=True, exist_ok=True)
    pointer.unlink(missing_ok=True)
    try:
        pointer.symlink_to(os.path.relpath(blob, pointer.parent))
    except OSError:
        blob.rename(pointer)


def _write_ref(at: Path, commit: str) -> None:
    ref = at / "refs" / "main"
    ref.parent.mkdir(parents=True, exist_ok=True)
    with written_aside(ref, "pull") as file:
        file.write(commit.encode("ascii"))
