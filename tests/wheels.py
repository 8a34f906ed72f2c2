"""Real wheels in real package indexes: folders, and a server that counts and can be slow."""

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote
from zipfile import ZIP_DEFLATED, ZipFile


def build_wheel(folder: Path, package: str, version: str, members: dict[str, bytes]) -> Path:
    """A wheel that pip accepts."""
    name = package.replace("-", "_")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    texts = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    everything = members | {name: text.encode() for name, text in texts.items()}
    record = "".join(f"{name},,\n" for name in [*everything, f"{info}/RECORD"])
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name, data in everything.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/RECORD", record)
    return path


def write_index(root: Path, wheels: list[Path], sha256: str | None = None) -> str:
    """A simple index (PEP 503) as a folder of pages beside the wheels; `sha256` in place of the true ones."""
    for wheel in wheels:
        package = wheel.name.split("-")[0].replace("_", "-")
        page = root / package / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        digest = sha256 or hashlib.sha256(wheel.read_bytes()).hexdigest()
        before = page.read_text() if page.exists() else "<!DOCTYPE html><html><body>\n"
        page.write_text(f'{before}<a href="{wheel.as_uri()}#sha256={digest}">{wheel.name}</a><br>\n')
    return root.as_uri()


class IndexServer:
    """A simple index over HTTP, as HTML (PEP 503) or JSON (PEP 691), with ranges. `gets` are the wheels asked for;
    `pause_s` is waited before each chunk of one; `login` is asked for where set, as "user:password"."""

    def __init__(self, wheels: list[Path], as_json: bool = False, pause_s: float = 0, login: str = "") -> None:
        self.wheels = {wheel.name: wheel for wheel in wheels}
        self.as_json, self.pause_s, self.login = as_json, pause_s, login
        self.gets: list[str] = []
        self.started = threading.Event()
        self.url = ""

    def page(self, package: str) -> bytes | None:
        found = [wheel for name, wheel in self.wheels.items() if name.split("-")[0].replace("_", "-") == package]
        if not found:
            return None
        digests = [hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in found]
        if self.as_json:
            files = [
                {"filename": wheel.name, "url": f"../../files/{wheel.name}", "hashes": {"sha256": digest}}
                for wheel, digest in zip(found, digests, strict=True)
            ]
            return json.dumps({"meta": {"api-version": "1.0"}, "name": package, "files": files}).encode()
        links = [
            f'<a href="../../files/{wheel.name}#sha256={digest}">{wheel.name}</a>'
            for wheel, digest in zip(found, digests, strict=True)
        ]
        return f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode()


def _handler(index: IndexServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer(body=True)

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def log_message(self, format: str, *args: object) -> None:
            pass

        def answer(self, body: bool) -> None:
            if index.login and self.headers.get("Authorization") != _basic(index.login):
                self.reply(401, b"", {"WWW-Authenticate": 'Basic realm="x"'}, body)
                return
            kind, _, name = unquote(self.path).strip("/").partition("/")
            if kind == "simple" and (page := index.page(name)) is not None:
                json_type, html = "application/vnd.pypi.simple.v1+json", "text/html"
                self.reply(200, page, {"Content-Type": json_type if index.as_json else html}, body)
            elif kind == "files" and name in index.wheels:
                self.send_wheel(index.wheels[name].read_bytes(), name, body)
            else:
                self.reply(404, b"", {}, body)

        def send_wheel(self, data: bytes, name: str, body: bool) -> None:
            start, end = 0, len(data) - 1
            asked = self.headers.get("Range")
            if asked:
                first, _, last = asked.removeprefix("bytes=").partition("-")
                start, end = int(first), min(int(last or end), end)
            headers = {"Content-Type": "application/octet-stream", "Accept-Ranges": "bytes", "ETag": '"1"'}
            if asked:
                headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
            if body:
                index.gets.append(name)
            self.reply(206 if asked else 200, data[start : end + 1], headers, body, index.pause_s)

        def reply(self, status: int, data: bytes, headers: dict[str, str], body: bool, pause_s: float = 0) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            step = max(1, len(data) // 20) if pause_s else len(data) or 1
            for start in range(0, len(data) if body else 0, step):
                try:
                    self.wfile.write(data[start : start + step])
                    self.wfile.flush()
                except OSError:
                    return
                if pause_s:
                    index.started.set()
                    time.sleep(pause_s)

    return Handler


def _basic(login: str) -> str:
    import base64

    return "Basic " + base64.b64encode(login.encode()).decode()


@contextmanager
def serve(index: IndexServer) -> Iterator[IndexServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(index))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    index.url = f"http://127.0.0.1:{server.server_address[1]}/simple/"
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
