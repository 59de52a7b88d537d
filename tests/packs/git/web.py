"""A Git host by https: git's own `http-backend`, sign-in for what is private, and bad manners."""

import base64
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.authz.certificates import Company

USER, TOKEN = "oauth2", "glpat-of-the-tenant"


class Handler(BaseHTTPRequestHandler):
    server: "WebHost"
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self._body())

    def log_message(self, *_: Any) -> None:
        """Nothing; what was asked is in `seen`."""

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _serve(self, body: bytes) -> None:
        path, _, query = self.path.partition("?")
        self.server.seen.append((path, self.headers.get("Authorization")))
        if path.startswith("/hang/"):
            self.server.hanging.set()
            self.server.over.wait(60)
            self._answer(503, {}, b"")
        elif path.startswith("/moved/"):
            target = self.server.moved_to + path.removeprefix("/moved")
            self._answer(302, {"Location": f"{target}?{query}"}, b"")
        elif path.startswith("/private/") and not self._signed_in():
            self._answer(401, {"WWW-Authenticate": 'Basic realm="git"'}, b"")
        else:
            self._backend(path, query, body)

    def _signed_in(self) -> bool:
        expected = base64.b64encode(f"{USER}:{TOKEN}".encode()).decode()
        return self.headers.get("Authorization") == f"Basic {expected}"

    def _backend(self, path: str, query: str, body: bytes) -> None:
        env = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.server.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REMOTE_USER": "ada",
        }
        done = subprocess.run(
            ["git", "http-backend"], env=env, input=body, capture_output=True, timeout=30
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if line)
        self._answer(int(fields.pop("Status", "200").split()[0]), fields, content)

    def _answer(self, status: int, fields: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class WebHost(ThreadingHTTPServer):
    """Serves the repositories below *root* to whoever knows its name, by TLS."""

    daemon_threads = True

    def __init__(self, root: Path, host: str, company: Company) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.root, self.host = root, host
        self.seen: list[tuple[str, str | None]] = []
        self.hanging, self.over = threading.Event(), threading.Event()
        self.moved_to = ""
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*company.certify(host))
        self.socket = tls.wrap_socket(self.socket, server_side=True)

    @property
    def place(self) -> str:
        return f"{self.host}:{self.server_port}"

    @property
    def url(self) -> str:
        return f"https://{self.place}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed hang up in the middle."""

    @contextmanager
    def running(self) -> Iterator["WebHost"]:
        thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.over.set()
            self.shutdown()
            thread.join(10)
            self.server_close()
