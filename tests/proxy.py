"""A small logging proxy: forwards plain requests, tunnels the others, and can ask for a password."""

import contextlib
import http.client
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Proxy(ThreadingHTTPServer):
    """`with Proxy() as proxy:` logs lines such as `CONNECT 127.0.0.1:443` in `proxy.log`."""

    daemon_threads = True

    def __init__(self, refuse: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.log: list[str] = []
        self.refuse = refuse
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> "Proxy":
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no fault of the proxy."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def log_message(self, format: str, *args: object) -> None:
        """The log is `Proxy.log`."""

    def refused(self) -> bool:
        self.server.log.append(f"{self.command} {self.path.partition('?')[0]}")
        if self.server.refuse:
            self.send_response(self.server.refuse)
            self.send_header("Content-Length", "0")
            self.end_headers()
        return bool(self.server.refuse)

    def do_CONNECT(self) -> None:
        if self.refused():
            return
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port))) as far:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=pump, args=(far, self.connection), daemon=True)
            back.start()
            pump(self.connection, far)
            back.join(5)
        self.close_connection = True

    def do_GET(self) -> None:
        if self.refused():
            return
        parts = urlsplit(self.path)
        far = http.client.HTTPConnection(parts.hostname or "", parts.port or 80)
        try:
            far.request("GET", f"{parts.path}?{parts.query}", headers=dict(self.headers))
            answer = far.getresponse()
            body = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
        finally:
            far.close()


def pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
