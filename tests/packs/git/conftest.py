"""One server with git, and hosts of repositories that it may reach by a company's names."""

import asyncio
import base64
import os
import shlex
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import asyncssh
import pytest

from gatepost.runtime.services import Services
from tests.packs.conftest import (
    HttpServer,
    PackCaller,
    PackServer,
    RecordedRequest,
    StubResponse,
    open_server,
)
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
        Commit exactly these files to main, whatever their names; a text is a link's target.

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
        """Return what a file of the repository contains."""
        return plain_git(self.path, "show", f"{ref}:{path}")


ALLOWED_PROGRAMS = {"git-upload-pack", "git-receive-pack"}


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
        """Return the host and its key for a `known_hosts` file."""
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
        assert program in ALLOWED_PROGRAMS
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


class WebHost(HttpServer):
    """Serves the repositories below *root* over TLS to any client that connects by its name."""

    def __init__(self, root: Path, host: str, company: CertificateAuthority) -> None:
        certificate, key = company.certify(host)
        super().__init__(self._answered, ssl_certfile=certificate, ssl_keyfile=key)
        self.root, self.host = root, host
        self.hanging = threading.Event()
        self.moved_to = ""

    @property
    def place(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"https://{self.place}"

    def _answered(self, asked: RecordedRequest) -> StubResponse | None:
        query = urlencode(asked.query, doseq=True)
        if asked.path.startswith("/hang/"):
            self.hanging.set()
            return None
        if asked.path.startswith("/moved/"):
            target = self.moved_to + asked.path.removeprefix("/moved")
            return StubResponse(302, b"", {"location": f"{target}?{query}"})
        expected = base64.b64encode(f"{USER}:{TOKEN}".encode()).decode()
        signed_in = asked.headers.get("authorization") == f"Basic {expected}"
        if asked.path.startswith("/private/") and not signed_in:
            return StubResponse(401, b"", {"www-authenticate": 'Basic realm="git"'})
        return self._backend(asked, query)

    def _backend(self, asked: RecordedRequest, query: str) -> StubResponse:
        env = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": asked.path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": asked.method,
            "CONTENT_TYPE": asked.headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(asked.body)),
            "HTTP_CONTENT_ENCODING": asked.headers.get("content-encoding", ""),
            "GIT_PROTOCOL": asked.headers.get("git-protocol", ""),
            "REMOTE_USER": "ada",
        }
        done = subprocess.run(
            ["git", "http-backend"], env=env, input=asked.body, capture_output=True, timeout=30
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        lines = [line.partition(": ") for line in head.decode().split("\r\n") if line]
        fields = {name.lower(): value for name, _, value in lines}
        return StubResponse(int(fields.pop("status", "200").split()[0]), content, fields)


def git_result(agent: PackCaller, *args: str, **more: Any) -> dict[str, Any]:
    """Return the result of a git command that was run."""
    reply = agent.call("git", args=list(args), **more)
    assert reply.failure is None, reply.failure
    answer: dict[str, Any] = reply.value
    return answer


def git_output(agent: PackCaller, *args: str) -> str:
    """Return the output of a git command that succeeded."""
    answer = git_result(agent, *args)
    assert answer["returncode"] == 0, answer
    return str(answer["stdout"])


def git_refusal(agent: PackCaller, *args: str, **more: Any) -> str:
    """Return the reason why a git command was not run."""
    reply = agent.call("git", args=list(args), **more)
    assert reply.failure is not None, reply.value
    return reply.failure


WEB_HOST, SSH_HOST, INTERNAL_HOST = "git.company.test", "ssh.company.test", "inside.company.test"
NAMES = {WEB_HOST: "127.0.0.1", SSH_HOST: "127.0.0.1", INTERNAL_HOST: "10.0.0.7"}


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """Resolve the company's names, which the system does not know."""
    if host not in NAMES:
        raise OSError("no such name")
    return (NAMES[host],)


class GitServers(PackServer):
    """The server, and the hosts beside it."""

    web: WebHost
    shell: SshHost
    impostor: SshHost
    """A host at the name of the SSH host and another port, whose key differs from the known one."""
    unlisted: SshHost
    """A host whose key is in no `known_hosts` file."""
    upstream: Path

    def offered(self, name: str, **files: bytes | str) -> GitRemote:
        """Create a new repository at both hosts."""
        made = GitRemote(self.upstream, name)
        if files:
            made.commit({path.replace("__", "."): data for path, data in files.items()})
        return made


@pytest.fixture(scope="session")
def git_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GitServers]:
    folder = tmp_path_factory.mktemp("git")
    upstream = folder / "upstream"
    upstream.mkdir()
    (upstream / "private").mkdir()
    company = CertificateAuthority(folder)

    def prepare(services: Services) -> None:
        services.outbound.resolver = resolve_host

    with ExitStack() as stack:
        web = stack.enter_context(WebHost(upstream, WEB_HOST, company))
        shell, impostor, unlisted = (
            stack.enter_context(SshHost(upstream, SSH_HOST).running()) for _ in range(3)
        )
        false = f"[{SSH_HOST}]:{impostor.port} {shell.line.partition(' ')[2]}"
        settings = {
            "network": {
                "ca_bundle": str(company.bundle),
                "allow_hosts": [
                    web.place,
                    *(f"{SSH_HOST}:{one.port}" for one in (shell, impostor, unlisted)),
                ],
            },
            "packs": {
                "git": {"credentials": {web.place: "secret:GIT_TOKEN"}, "max_output_bytes": 20_000},
                "ssh": {"known_hosts": [shell.line, false]},
            },
            "workspace": {
                "root": str(folder / "workspaces"),
                "quota_bytes": 3_000_000,
                "quota_files": 600,
            },
        }
        packs = ["filesystem", "workspace", "git", "ssh"]
        git_servers = stack.enter_context(
            open_server(folder, packs, GitServers, prepare=prepare, **settings)
        )
        git_servers.web, git_servers.shell, git_servers.upstream = web, shell, upstream
        git_servers.impostor, git_servers.unlisted = impostor, unlisted
        yield git_servers


@pytest.fixture(params=["mcp", "rest"])
def agent(git_servers: GitServers, request: pytest.FixtureRequest) -> PackCaller:
    """Return an agent of a tenant of its own, who calls by one of the two protocols."""
    return git_servers.agent(request.param)


@pytest.fixture
def mcp_agent(git_servers: GitServers) -> PackCaller:
    """Return an agent of a tenant of its own, where the protocol does not matter."""
    return git_servers.agent("mcp")
