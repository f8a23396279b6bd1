"""One file from a hub into the cache: goes on where it stopped, and is kept only if its hash is right."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from trivet.errors import HubError, InputError, TrivetError, UnsupportedError
from trivet.hub.names import Name

WAITS = (1.0, 2.0, 4.0, 8.0)  # seconds before trying again; any byte that comes begins them anew
SILENCE = 30.0  # seconds without a byte after which a connection is given up
CHUNK = 1 << 18  # bytes written at a time
HASHED = 1 << 22  # bytes hashed at a time

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file as the hub lists it. `etag` is its hash: SHA-256, or, where it does not lie in LFS, git's SHA-1
    of a blob."""

    name: str
    nbytes: int
    etag: str


class _Broken(HubError):
    """The connection, or the hub for now: trying again may help."""


def partial_of(blob: Path) -> Path:
    """Where what has come so far of a blob is."""
    return blob.with_name(f"{blob.name}.incomplete")


def fetch_blob(name: Name, commit: str, file: RemoteFile, blob: Path, advance: Advance) -> None:
    """Fetches a file's bytes as `blob`. Raises HubError; what has come is kept then, unless it is wrong."""
    with _locked(partial_of(blob), name) as part:
        if part.seek(0, os.SEEK_END) > file.nbytes:
            part.truncate(0)
        advance(part.seek(0, os.SEEK_END))
        _transfer(name, commit, file, part, advance)
        part.flush()
        os.fsync(part.fileno())
        if _hash(part, file) != file.etag:
            partial_of(blob).unlink()
            raise HubError(
                f"[pull] {file.name} of {name}: the bytes that came do not hash to what the hub lists"
                f" ({file.etag}) and were thrown away; pull again"
            )
        if not os.path.samestat(os.fstat(part.fileno()), partial_of(blob).stat()):
            raise HubError(f"[pull] {file.name} of {name} was removed while it was fetched; pull again")
        partial_of(blob).rename(blob)


@contextlib.contextmanager
def _locked(path: Path, name: Name) -> Iterator[BinaryIO]:
    """The file of what has come so far, for this process alone."""
    with path.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HubError(f"[pull] {name} is being fetched by another process") from None
        except OSError:  # a file system without locks
            pass
        if not os.fstat(file.fileno()).st_nlink:
            raise HubError(f"[pull] {name} was fetched by another process just now; pull again to see")
        yield file


def _transfer(name: Name, commit: str, file: RemoteFile, part: BinaryIO, advance: Advance) -> None:
    """Appends what is missing, trying again where a connection breaks."""
    tries = 0
    while (have := part.tell()) < file.nbytes:
        try:
            with explained(name):
                _stream(name, commit, file, part, advance)
            if part.tell() < file.nbytes:
                raise _Broken(
                    f"[pull] {file.name} of {name}: the hub stopped after {part.tell()} of {file.nbytes}"
                    " bytes; they are kept: pull again to go on"
                )
        except _Broken:
            tries = 0 if part.tell() > have else tries
            if tries >= len(WAITS):
                raise
            time.sleep(WAITS[tries])
            tries += 1


def _stream(name: Name, commit: str, file: RemoteFile, part: BinaryIO, advance: Advance) -> None:
    hub = library()
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

    have = part.tell()
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"} | (
        {"Range": f"bytes={have}-"} if have else {}
    )
    url = hub.hf_hub_url(name.repo, file.name, revision=commit, endpoint=endpoint())
    with hub.get_session().stream("GET", url, headers=headers, timeout=SILENCE) as response:
        hf_raise_for_status(response)
        if have and response.status_code != 206:  # not a part of it: the whole comes again
            part.truncate(0)
            part.seek(0)
            advance(-have)
        for chunk in response.iter_raw(CHUNK):  # never unpacked: few bytes could become very many
            if part.tell() + len(chunk) > file.nbytes:
                part.truncate(0)
                raise HubError(
                    f"[pull] {file.name} of {name}: more bytes came than the {file.nbytes} that the hub"
                    " lists; they were thrown away"
                )
            part.write(chunk)
            advance(len(chunk))


def _hash(file: BinaryIO, wanted: RemoteFile) -> str:
    hashed = hashlib.sha256()
    if len(wanted.etag) == 40:
        hashed = hashlib.sha1(b"blob %d\0" % wanted.nbytes, usedforsecurity=False)
    file.seek(0)
    while chunk := file.read(HASHED):
        hashed.update(chunk)
    return hashed.hexdigest()


def endpoint() -> str | None:
    """The hub to ask, where it is not the usual one."""
    return os.environ.get("HF_ENDPOINT") or None


def library() -> Any:
    """huggingface_hub; raises UnsupportedError without it."""
    try:
        import huggingface_hub
    except ImportError:
        raise UnsupportedError(
            "[pull] wants the package huggingface_hub: pip install 'trivet[hub]'"
        ) from None
    return huggingface_hub


@contextlib.contextmanager
def explained(name: Name) -> Iterator[None]:
    """Errors of the library and of the network as ours; those of the disk pass."""
    from huggingface_hub import errors

    hub = endpoint() or "https://huggingface.co"
    page = f"{hub}/{name.repo}"
    try:
        yield
    except TrivetError:
        raise
    except errors.GatedRepoError:
        raise HubError(
            f"[pull] {name.repo} is gated: accept its terms at {page}, set HF_TOKEN to a token of your"
            " account (made at https://huggingface.co/settings/tokens) and pull again"
        ) from None
    except errors.RepositoryNotFoundError:
        raise HubError(
            f"[pull] the hub has no {name.repo}, or it is private: look at {page}, or set HF_TOKEN"
        ) from None
    except errors.OfflineModeIsEnabled:
        raise HubError(f"[pull] {name} is to be fetched, and HF_HUB_OFFLINE is set") from None
    except errors.HfHubHTTPError as error:
        raise _refused(name, error.response.status_code, page) from None
    except errors.HFValidationError as error:
        raise InputError(f"[pull] {name} is no name for the hub: {str(error)[:200]}") from None
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {str(error)[:200]}"
        raise HubError(f"[pull] {name}: the question to {hub}, or its answer, is malformed: {why}") from None
    except Exception as error:  # of the network, whatever library makes the connection
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise _Broken(
            f"[pull] {name}: the connection to {hub} failed: {why}; what came is kept: pull again to go on"
        ) from None


def _refused(name: Name, status: int, page: str) -> HubError:
    if status in (401, 403):
        return HubError(
            f"[pull] the hub refuses {name} ({status}): set HF_TOKEN to a token of an account that may read"
            f" {page}, and accept the model's terms there if it has any"
        )
    kind = _Broken if status >= 500 or status == 429 else HubError
    return kind(f"[pull] {name}: the hub answers {status}; what came is kept: pull again to go on")
