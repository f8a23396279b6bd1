"""A hub on loopback: what huggingface_hub asks of one, and what can go wrong with it.

Answers as https://huggingface.co/docs/hub/api and the real servers' headers have it: large files lie in LFS,
behind a redirect, with the SHA-256 as their ETag; small ones are git blobs."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c0ffee" * 6 + "c0ff"
LARGE = 1000  # bytes from which a file lies in LFS


def git_sha(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest() if len(data) >= LARGE else git_sha(data)


class Hub:
    """`repos`: name -> {file name: bytes}. The rest are faults, each off to begin with."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.gated = False  # files want the token "good"
        self.status = 0  # what every question is answered with
        self.cut: int | None = None  # a file's connection breaks after so many bytes of an answer
        self.short: int | None = None  # a file's answer ends after so many bytes, as if that were all
        self.pause = 0.0  # seconds between the pieces of a file
        self.says: dict[str, object] = {}  # more words of a model
        self.ranges = True  # whether a part of a file can be asked for
        self.sent: dict[str, bytes] = {}  # file name -> other bytes than those listed
        self.listed: dict[str, dict[str, object]] = {}  # file name -> other words in the list
        self.commit = COMMIT
        self.asked: list[tuple[str, str | None]] = []  # path and Range of each request for a file
        self.tokens: list[str | None] = []  # of requests to the store behind the redirect
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def list(self, repo: str) -> dict[str, object]:
        siblings = []
        for name, data in self.repos[repo].items():
            entry: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": git_sha(data)}
            if len(data) >= LARGE:
                sha = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"sha256": sha, "size": len(data), "pointerSize": 134}
            siblings.append(entry | self.listed.get(name, {}))
        return {"id": repo, "modelId": repo, "sha": self.commit, "siblings": siblings} | self.says


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if self.hub.status:
            self.answer(self.hub.status, b"{}")
        elif path.startswith("/api/models/"):
            repo = path.removeprefix("/api/models/")
            if repo not in self.hub.repos:  # the real one does not tell strangers what there is
                self.answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})
            else:
                self.answer(200, json.dumps(self.hub.list(repo)).encode())
        elif path.startswith("/store/"):
            self.hub.tokens.append(self.headers["Authorization"])
            self.file(*path.removeprefix("/store/").split("@"))
        else:
            self.resolve(path)

    do_HEAD = do_GET

    def resolve(self, path: str) -> None:
        owner, repo, _, commit, name = (path[1:].split("/", 4) + [""] * 3)[:5]
        files = self.hub.repos.get(f"{owner}/{repo}", {})
        if self.hub.gated and self.headers["Authorization"] != "Bearer good":
            self.answer(
                401 if self.headers["Authorization"] is None else 403, b"", {"X-Error-Code": "GatedRepo"}
            )
        elif name not in files or commit not in ("main", self.hub.commit):
            self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        elif len(files[name]) >= LARGE:
            store = self.hub.url.replace("127.0.0.1", "localhost")  # another host, as a CDN is
            linked = {"X-Linked-Size": str(len(files[name])), "X-Linked-Etag": f'"{etag(files[name])}"'}
            moved = {"Location": f"{store}/store/{owner}/{repo}@{name}", "X-Repo-Commit": self.hub.commit}
            self.answer(302, b"", moved | linked)
        else:
            self.file(f"{owner}/{repo}", name)

    def file(self, repo: str, name: str) -> None:
        data = self.hub.sent.get(name, self.hub.repos[repo][name])
        wanted = self.headers["Range"] if self.hub.ranges else None
        if self.command == "GET":
            self.hub.asked.append((name, self.headers["Range"]))
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        headers = {"ETag": f'"{etag(data)}"', "X-Repo-Commit": self.hub.commit, "Accept-Ranges": "bytes"}
        if wanted and start >= len(data):
            self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        body = data[start:]
        if self.hub.short is not None:
            body = body[: self.hub.short]
            headers.pop("Content-Range", None)
        self.answer(206 if wanted else 200, body, headers, cut=self.hub.cut)

    def answer(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json"} | (headers or {})).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        body_ = body if cut is None else body[:cut]
        for at in range(0, len(body_), 1 << 16):
            self.wfile.write(body_[at : at + (1 << 16)])
            time.sleep(self.hub.pause)
        if cut is not None and cut < len(body):
            self.wfile.flush()
            self.close_connection = True
