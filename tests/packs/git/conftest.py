"""One server with git, and the hosts that it may reach by a company's names."""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gatepost.runtime.services import Services
from tests.packs.conftest import PackCaller, PackServer, open_server
from tests.packs.git.git_hosts import TOKEN, GitRemote, SshHost, WebHost
from tests.support.proxies import CertificateAuthority

T = TypeVar("T")

__all__ = ["TOKEN", "GitServers"]

WEB, SHELL, INSIDE = "git.company.test", "ssh.company.test", "inside.company.test"
NAMES = {WEB: "127.0.0.1", SHELL: "127.0.0.1", INSIDE: "10.0.0.7"}


async def looked_up(host: str, port: int) -> Sequence[str]:
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
    loop: asyncio.AbstractEventLoop

    def keep_secret(self, tenant: str, name: str, value: str, *hosts: str) -> None:
        """Set a secret as `gatepost secrets set` does with these hosts."""
        self.inside(self.gatepost.services.secrets.put(tenant, name, value, hosts))

    def inside(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the server's own loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    def offered(self, name: str, **files: bytes | str) -> GitRemote:
        """A new repository at both hosts."""
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
    loops: list[asyncio.AbstractEventLoop] = []

    def prepare(services: Services) -> None:
        services.outbound.resolver = looked_up
        loops.append(asyncio.get_running_loop())

    with ExitStack() as stack:
        web = stack.enter_context(WebHost(upstream, WEB, company).running())
        shell, impostor, unlisted = (
            stack.enter_context(SshHost(upstream, SHELL).running()) for _ in range(3)
        )
        false = f"[{SHELL}]:{impostor.port} {shell.line.partition(' ')[2]}"
        settings = {
            "network": {
                "ca_bundle": str(company.bundle),
                "allow_hosts": [
                    web.place,
                    *(f"{SHELL}:{one.port}" for one in (shell, impostor, unlisted)),
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
        server = stack.enter_context(open_server(folder, packs, prepare=prepare, **settings))
        git_servers = GitServers(server.gatepost, server.root, server.packs)
        git_servers.web, git_servers.shell, git_servers.upstream = web, shell, upstream
        git_servers.impostor, git_servers.unlisted, git_servers.loop = impostor, unlisted, loops[0]
        yield git_servers


@pytest.fixture(params=["mcp", "rest"])
def agent(git_servers: GitServers, request: pytest.FixtureRequest) -> PackCaller:
    """An agent of a tenant of its own, who calls by one of the two protocols."""
    return git_servers.agent(request.param)


@pytest.fixture
def mcp_agent(git_servers: GitServers) -> PackCaller:
    """An agent of a tenant of its own, where the protocol does not matter."""
    return git_servers.agent("mcp")
