"""A real HTTP server that speaks the hub's API and download routes, and misbehaves where a test asks it to.

Reached through HF_ENDPOINT. Large files are answered with a redirect to `/cdn/<sha256>`, small ones directly,
as on the real hub. `log` holds every request with the bytes that were written for it.
"""

import contextlib
import hashlib
import json
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit

BLOCK = 16 << 10


@dataclass
class Fault:
    """What goes wrong, `times` times, on requests of `method` whose path holds `path`."""

    path: str = ""
    times: int = 1 << 30
    method: str = "GET"
    skip: int = 0
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut_after: int | None = None
    """Close the connection after so many bytes of the body."""
    reset: bool = False
    """Close it with a reset instead."""
    stall_after: int | None = None
    """Send nothing more after so many bytes, and keep the connection open."""
    flip: int | None = None
    """Send the byte at this place of the file wrong."""
    only_ranges: bool = False
    """Only where a range was asked for."""
    no_ranges: bool = False
    no_length: bool = False
    """Answer without a length: the end of the connection is the end of the file."""
    pause_s: float = 0.0
    """Wait so long between blocks of the body."""


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    status: int = 0
    sent: int = 0


@dataclass
class HubFile:
    content: bytes
    lfs: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def git_id(self) -> str:
        return hashlib.sha1(b"blob %d\0" % len(self.content) + self.content).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.git_id


@dataclass
class Repo:
    files: dict[str, HubFile]
    gated: str | bool = False
    token: str = ""
    """Who reads it needs this token: gated, where `gated` is set, else private."""
    branch: str = "main"

    @property
    def commit(self) -> str:
        names = "\n".join(f"{name} {file.etag}" for name, file in self.files.items())
        return hashlib.sha1(names.encode("utf-8", "surrogatepass")).hexdigest()


class Hub(ThreadingHTTPServer):
    """`with Hub() as hub:` serves `hub.repos` and `hub.plain` at `hub.url` until the block ends."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.scheme = "https" if tls else "http"
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.repos: dict[str, Repo] = {}
        self.plain: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.faults: list[Fault] = []
        self.log: list[Request] = []
        self.cdn_url = self.url.replace("127.0.0.1", "localhost")
        """Another host than the hub's, as it is in the world: no token may go there."""
        self.lfs_ids: dict[str, str] = {}
        """Other checksums than the true ones, by file name."""
        self.signature = 1
        self.signature_lasts = 1 << 30
        """So many requests later the places that redirects led to are closed, once."""
        self.claimed_size: int | None = None
        """The length of each file, as the API tells it, where that is a lie."""
        self.no_blobs = False
        """The API gives names only, as some mirrors do."""
        self.most_at_once = self.at_once = 0
        """Bodies being sent at the same time."""
        self.closing = threading.Event()
        self.guard = threading.Lock()
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    @property
    def cdn_address(self) -> str:
        return self.cdn_url.partition("://")[2]

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.address}"

    def __enter__(self) -> "Hub":
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are what many tests are about."""

    def add(self, repo_id: str, files: dict[str, bytes], **settings: object) -> Repo:
        """Files over 10 kB are LFS files, as model files are."""
        made = {name: HubFile(content, lfs=len(content) > 10_000) for name, content in files.items()}
        self.repos[repo_id] = Repo(made, **settings)  # type: ignore[arg-type]
        return self.repos[repo_id]

    def fail(self, path: str = "", **fault: object) -> Fault:
        self.faults.append(Fault(path, **fault))  # type: ignore[arg-type]
        return self.faults[-1]

    def take_fault(self, method: str, path: str, ranged: bool) -> Fault:
        with self.guard:
            for fault in self.faults:
                if fault.times < 1 or fault.method != method or (fault.only_ranges and not ranged):
                    continue
                if fault.path in path:
                    if fault.skip > 0:
                        fault.skip -= 1
                        continue
                    fault.times -= 1
                    return fault
        return Fault()

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        with self.guard:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            yield
        finally:
            with self.guard:
                self.at_once -= 1

    def requests(self, part: str = "", method: str = "") -> list[Request]:
        with self.guard:
            return [r for r in self.log if part in r.path and method in r.method]

    def sent(self, part: str = "") -> int:
        """Body bytes written for paths that hold `part`."""
        return sum(r.sent for r in self.requests(part))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, format: str, *args: object) -> None:
        """The log is `Hub.log`."""

    def do_HEAD(self) -> None:
        self.route()

    def do_GET(self) -> None:
        self.route()

    def route(self) -> None:
        self.request_log = Request(self.command, self.path, {k.lower(): v for k, v in self.headers.items()})
        with self.server.guard:
            self.server.log.append(self.request_log)
        path = unquote(urlsplit(self.path).path)
        self.fault = self.server.take_fault(self.command, path, "Range" in self.headers)
        if self.fault.status:
            return self.reply(self.fault.status, self.fault.headers, self.fault.body)
        if path in self.server.plain:
            content, headers = self.server.plain[path]
            return self.content(content, headers)
        if path.startswith("/cdn/"):
            return self.cdn(path.removeprefix("/cdn/"))
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path)
        if api:
            return self.model_info(api[1], api[2] or "main")
        tree = re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", path)
        if tree:
            return self.tree(tree[1])
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if file:
            return self.resolve(file[1], file[2], file[3])
        return self.reply(404, {"X-Error-Message": "no such page"})

    def repo(self, repo_id: str) -> Repo | None:
        """The repo, or None after an answer that says why not."""
        repo = self.server.repos.get(repo_id)
        if repo is None:
            for name in self.server.repos:
                if name.lower() == repo_id.lower():
                    path = unquote(self.path).replace(repo_id, name, 1)
                    self.reply(307, {"Location": quote(path, safe="/?=&")})
                    return None
            # The hub does not tell strangers which names exist.
            self.reply(401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
            return None
        return repo

    def allowed(self, repo: Repo, content: bool) -> bool:
        if not repo.token or self.headers.get("Authorization") == f"Bearer {repo.token}":
            return True
        if repo.gated and not content:
            return True
        code = "GatedRepo" if repo.gated else "RepoNotFound"
        status = 403 if repo.gated and "Authorization" in self.headers else 401
        self.reply(status, {"X-Error-Code": code, "X-Error-Message": "Access is restricted"})
        return False

    def model_info(self, repo_id: str, revision: str) -> None:
        repo = self.repo(repo_id)
        if repo is None or not self.allowed(repo, content=False):
            return None
        if revision not in (repo.branch, repo.commit):
            return self.reply(404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
        blobs = "blobs" in parse_qs(urlsplit(self.path).query)
        siblings = [self.sibling(name, file, blobs) for name, file in repo.files.items()]
        info = {
            "_id": "1",
            "id": repo_id,
            "modelId": repo_id,
            "sha": repo.commit,
            "gated": repo.gated,
            "private": bool(repo.token) and not repo.gated,
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "siblings": siblings,
        }
        return self.reply(200, {"Content-Type": "application/json"}, json.dumps(info).encode())

    def tree(self, repo_id: str) -> None:
        """How the hub's own client lists a repo it fetches whole."""
        repo = self.repo(repo_id)
        if repo is None or not self.allowed(repo, content=False):
            return None
        entries: list[dict[str, object]] = []
        for name, file in repo.files.items():
            size = len(file.content)
            entries.append({"type": "file", "path": name, "size": size, "oid": file.git_id})
            if file.lfs:
                entries[-1]["lfs"] = {"oid": file.sha256, "size": size, "pointerSize": 134}
        return self.reply(200, {"Content-Type": "application/json"}, json.dumps(entries).encode())

    def sibling(self, name: str, file: HubFile, blobs: bool) -> dict[str, object]:
        if not blobs or self.server.no_blobs:
            return {"rfilename": name}
        size = self.server.claimed_size or len(file.content)
        sibling: dict[str, object] = {"rfilename": name, "size": size, "blobId": file.git_id}
        if file.lfs:
            sha256 = self.server.lfs_ids.get(name, file.sha256)
            sibling["lfs"] = {"sha256": sha256, "size": len(file.content), "pointerSize": 134}
        return sibling

    def resolve(self, repo_id: str, revision: str, name: str) -> None:
        repo = self.repo(repo_id)
        if repo is None or not self.allowed(repo, content=True):
            return None
        if revision not in (repo.branch, repo.commit):
            return self.reply(404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
        file = repo.files.get(name)
        if file is None:
            return self.reply(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": repo.commit})
        headers = {"X-Repo-Commit": repo.commit, "ETag": f'"{file.etag}"'}
        if not file.lfs:
            return self.content(file.content, headers)
        headers |= {"X-Linked-Size": str(len(file.content)), "X-Linked-ETag": f'"{file.sha256}"'}
        place = f"{self.server.cdn_url}/cdn/{file.sha256}?Signature={self.server.signature}"
        return self.reply(302, headers | {"Location": place})

    def cdn(self, sha256: str) -> None:
        with self.server.guard:
            self.server.signature_lasts -= 1
            self.server.signature += self.server.signature_lasts == 0
        if parse_qs(urlsplit(self.path).query)["Signature"] != [str(self.server.signature)]:
            return self.reply(403)
        for repo in self.server.repos.values():
            for file in repo.files.values():
                if file.sha256 == sha256:
                    return self.content(file.content, {"ETag": f'"{sha256}"'})
        return self.reply(403)

    def content(self, content: bytes, headers: dict[str, str]) -> None:
        headers = {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"} | headers
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not wanted or self.fault.no_ranges:
            return self.body(200, headers, content, 0, len(content))
        start, end = int(wanted[1]), min(int(wanted[2] or len(content)) + 1, len(content))
        if start >= len(content):
            return self.reply(416, {"Content-Range": f"bytes */{len(content)}"})
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
        return self.body(206, headers, content, start, end)

    def body(self, status: int, headers: dict[str, str], content: bytes, start: int, end: int) -> None:
        if self.fault.no_length:
            headers = headers | {"Connection": "close"}
        else:
            headers = headers | {"Content-Length": str(end - start)}
        self.head(status, headers)
        if self.command == "HEAD":
            return
        with contextlib.suppress(OSError), self.server.sending():
            for block in self.blocks(content, start, end):
                self.request_log.sent += len(block)
                self.wfile.write(block)
        if self.fault.cut_after is not None or self.fault.stall_after is not None or self.fault.no_length:
            self.hang_up()

    def blocks(self, content: bytes, start: int, end: int) -> Iterator[bytes]:
        fault, pos = self.fault, start
        stop = end if fault.cut_after is None else min(end, start + fault.cut_after)
        stall = None if fault.stall_after is None else start + fault.stall_after
        while pos < stop and not self.server.closing.is_set():
            if stall is not None and pos >= stall:
                self.server.closing.wait(30)
                return
            size = min(BLOCK, stop - pos, BLOCK if stall is None else stall - pos)
            block = bytearray(content[pos : pos + size])
            if fault.flip is not None and pos <= fault.flip < pos + size:
                block[fault.flip - pos] ^= 1
            yield bytes(block)
            pos += size
            if fault.pause_s:
                time.sleep(fault.pause_s)

    def hang_up(self) -> None:
        self.close_connection = True
        if self.fault.reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            # Past the file objects that would hold it open, so that no orderly end is sent first.
            socket.close(self.connection.detach())

    def reply(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.head(status, {"Content-Length": str(len(body))} | (headers or {}))
        if self.command != "HEAD":
            with contextlib.suppress(OSError):
                self.request_log.sent += len(body)
                self.wfile.write(body)

    def head(self, status: int, headers: dict[str, str]) -> None:
        self.request_log.status = status
        with contextlib.suppress(OSError):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
