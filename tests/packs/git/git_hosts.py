"""Git repositories and the hosts that offer them by SSH and HTTPS, and calls of `git`."""

import asyncio
import base64
import os
import shlex
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import asyncssh

from tests.packs.conftest import PackCaller
from tests.support.proxies import CertificateAuthority

ENV = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.com",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.com",
    "LC_ALL": "C.UTF-8",
}


def plain_git(folder: Path, *args: str, data: bytes = b"") -> str:
    """Run git without any of Gatepost's rules."""
    done = subprocess.run(
        ["git", *args], cwd=folder, env=ENV, input=data, capture_output=True, timeout=30, check=True
    )
    return done.stdout.decode().strip()


class GitRemote:
    """A bare repository below *root*, which a server offers."""

    def __init__(self, root: Path, name: str) -> None:
        self.path = root / name
        plain_git(root, "init", "--quiet", "--bare", "--initial-branch=main", str(self.path))
        plain_git(self.path, "config", "http.receivepack", "true")

    def commit(
        self,
        files: Mapping[str, bytes | str],
        *,
        modes: Mapping[str, str] = {},
        onto: str | None = None,
    ) -> str:
        """
        A commit on main with exactly these files, whatever their names; a text is a link's target.

        With *onto* its parent is that commit.
        """
        entries: list[tuple[tuple[str, ...], str, str]] = []
        kept: dict[bytes, str] = {}
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            if data not in kept:
                kept[data] = plain_git(self.path, "hash-object", "-w", "--stdin", data=data)
            usual = "120000" if isinstance(content, str) else "100644"
            entries.append((tuple(name.split("/")), modes.get(name, usual), kept[data]))
        tree = self._tree(entries)
        return self.publish(tree, onto)

    def publish(self, tree: str, onto: str | None = None) -> str:
        """Make *tree* what main holds."""
        parent = [] if onto is None else ["-p", onto]
        made = plain_git(self.path, "commit-tree", tree, *parent, "-m", "From upstream")
        plain_git(self.path, "update-ref", "refs/heads/main", made)
        return made

    def _tree(self, entries: list[tuple[tuple[str, ...], str, str]]) -> str:
        lines: list[bytes] = []
        folders: dict[str, list[tuple[tuple[str, ...], str, str]]] = {}
        for names, mode, oid in entries:
            if len(names) > 1:
                folders.setdefault(names[0], []).append((names[1:], mode, oid))
                continue
            kind = "commit" if mode == "160000" else "blob"
            lines.append(f"{mode} {kind} {oid}\t{names[0]}".encode(errors="surrogateescape"))
        for name, below in folders.items():
            lines.append(f"040000 tree {self._tree(below)}\t{name}".encode())
        return plain_git(self.path, "mktree", "-z", "--missing", data=b"\0".join([*lines, b""]))

    def text(self, path: str, ref: str = "main") -> str:
        """What a file of it holds."""
        return plain_git(self.path, "show", f"{ref}:{path}")


ALLOWED = {"git-upload-pack", "git-receive-pack"}


class SshHost:
    """Serves the repositories below *root*; `accounts` are the public keys that may sign in."""

    def __init__(self, root: Path, host: str) -> None:
        self.root, self.host = root, host
        self.accounts: set[bytes] = set()
        self.commands: list[str] = []
        self.key = asyncssh.generate_private_key("ssh-ed25519")
        self.port = 0
        self._ready = threading.Event()

    @property
    def line(self) -> str:
        """The host and its key for a `known_hosts` file."""
        public = self.key.export_public_key().decode().split()
        return f"[{self.host}]:{self.port} {public[0]} {public[1]}"

    def url(self, name: str) -> str:
        return f"ssh://git@{self.host}:{self.port}/{name}"

    def allow(self, public: str) -> None:
        """Open an account for the key that a tenant shows."""
        self.accounts.add(asyncssh.import_public_key(public).public_data)

    @contextmanager
    def running(self) -> Iterator["SshHost"]:
        thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        thread.start()
        assert self._ready.wait(60), "the SSH host did not start"
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._over.set)
            thread.join(60)

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        accounts = self.accounts

        class GitSshServer(asyncssh.SSHServer):
            def begin_auth(self, username: str) -> bool:
                return True

            def public_key_auth_supported(self) -> bool:
                return True

            def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
                return username == "git" and key.public_data in accounts

        server = await asyncssh.create_server(
            GitSshServer,
            "127.0.0.1",
            0,
            server_host_keys=[self.key],
            process_factory=self._run,
            encoding=None,
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        server.close()

    async def _run(self, process: "asyncssh.SSHServerProcess[bytes]") -> None:
        command = process.command or ""
        self.commands.append(command)
        program, name = shlex.split(command)
        assert program in ALLOWED
        child = await asyncio.create_subprocess_exec(
            program,
            str(self.root / name.lstrip("/")),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        await process.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
        code = await child.wait()
        await process.stdout.drain()
        await process.stderr.drain()
        process.exit(code)
        await process.wait_closed()


USER, TOKEN = "oauth2", "glpat-of-the-tenant"


class GitHandler(BaseHTTPRequestHandler):
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
    """Serves the repositories below *root* over TLS to any client that connects by its name."""

    daemon_threads = True

    def __init__(self, root: Path, host: str, company: CertificateAuthority) -> None:
        super().__init__(("127.0.0.1", 0), GitHandler)
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
        """Ignore the errors of clients that are killed during a request."""

    @contextmanager
    def running(self) -> Iterator["WebHost"]:
        thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.over.set()
            self.shutdown()
            thread.join(60)
            self.server_close()


def git(agent: PackCaller, *args: str, **more: Any) -> dict[str, Any]:
    """Return the result of a git command that was run."""
    reply = agent.call("git", args=list(args), **more)
    assert reply.failure is None, reply.failure
    answer: dict[str, Any] = reply.value
    return answer


def fine(agent: PackCaller, *args: str) -> str:
    """Return the output of a git command that succeeded."""
    answer = git(agent, *args)
    assert answer["returncode"] == 0, answer
    return str(answer["stdout"])


def refused(agent: PackCaller, *args: str, **more: Any) -> str:
    """Return the reason why a git command was not run."""
    reply = agent.call("git", args=list(args), **more)
    assert reply.failure is not None, reply.value
    return reply.failure
