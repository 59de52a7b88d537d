"""One server with the packs of files, and two tenants whose files every path must keep apart."""

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs

import msgspec
import pytest

from gatepost.workspace import Workspaces, kernel_resolves, resolver_of
from gatepost_packs import BUILT_IN, filesystem, memory, workspace
from gatepost_packs.vault import tools as vault
from tests.support.client import Protocol, ToolCaller
from tests.support.commands import tenant_folder
from tests.support.endpoint import EndpointClient, a_caller
from tests.support.issuers import AsgiServer, Idp
from tests.support.server import Server, issuer_settings, running_server

PackServerType = TypeVar("PackServerType", bound="PackServer")

by_mcp = pytest.mark.parametrize("agent", ["mcp"], indirect=True)
by_rest = pytest.mark.parametrize("agent", ["rest"], indirect=True)
"""
For tables of cases whose protocol makes no difference: both get the same outcome of a tool, and
`tests/mcp` and `tests/rest` show how each writes it (for example `rest/test_responses.py`). REST
tells the kind of a failure as well. Every tool still has tests by both.
"""


class PackCaller(ToolCaller):
    """An agent whose tenant's files lie in *folder*."""

    def __init__(
        self, gatepost: Server, root: Path, tenant: str, protocol: Protocol, scopes: str
    ) -> None:
        super().__init__(gatepost, tenant, protocol, scopes)
        self._root = root

    @property
    def folder(self) -> Path:
        """Return the tenant's folder, where a test may put files before the server does."""
        return tenant_folder(self._root, self.tenant)


class PackServer(Server):
    """A server with these packs, and where it keeps the tenants' files."""

    root: Path
    packs: list[str]

    @cached_property
    def _numbers(self) -> Iterator[int]:
        return count(1)

    def agent(
        self, protocol: Protocol, tenant: str | None = None, scopes: str | None = None
    ) -> PackCaller:
        """Return an agent of that tenant, or of a new one, with all scopes unless given."""
        scopes = " ".join(scopes_of(self.packs)) if scopes is None else scopes
        tenant = tenant or f"{protocol}-{next(self._numbers)}"
        return PackCaller(self, self.root, tenant, protocol, scopes)

    def agent_with(self, protocol: Protocol, *hosts: str, **secrets: str) -> PackCaller:
        """Return an agent of a new tenant that has these secrets, bound to these hosts."""
        agent = self.agent(protocol)
        self.put_secrets(agent.tenant, *hosts, **secrets)
        return agent

    def put_secrets(self, tenant: str, *hosts: str, **secrets: str) -> None:
        """Set these secrets of a tenant, as `gatepost secrets set` does with these hosts."""
        for name, value in secrets.items():
            self.run(self.services.secrets.put(tenant, name, value, hosts))


def scopes_of(packs: list[str]) -> list[str]:
    """Return all scopes that the offers of these packs need."""
    found = [import_module(BUILT_IN[name].source).pack for name in packs]
    return sorted({scope for pack in found for offer in pack.offers for scope in offer.scopes})


@contextmanager
def open_server(
    folder: Path,
    packs: list[str],
    /,
    kind: type[PackServerType] = PackServer,  # type: ignore[assignment]
    **settings: Any,
) -> Iterator[PackServerType]:
    """Run a server with these packs; *settings* as in `running_server`. Use makes its tenants."""
    root = folder / "workspaces"
    usual: dict[str, Any] = {
        "tools": {"packs": packs},
        "tenancy": {"create_on_first_use": True},
        "workspace": {"root": str(root)},
    }
    with (
        Idp() as idp,
        running_server(idp, [issuer_settings(idp)], kind=kind, **(usual | settings)) as server,
    ):
        server.root, server.packs = Path(server.config.workspace.root), packs
        yield server


class RecordedRequest(msgspec.Struct, frozen=True):
    """One request."""

    method: str
    path: str
    """As it was sent, percent-encoded."""
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes

    def first(self, name: str, default: str = "") -> str:
        """Return a parameter of the query."""
        return self.query.get(name, [default])[0]

    @property
    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)


class StubResponse(msgspec.Struct, frozen=True):
    """What is sent back."""

    status: int
    body: Any = None
    """JSON, unless it is bytes."""
    headers: Mapping[str, str] = {}


class HttpServer(AsgiServer):
    """
    Serves *answer* on loopback, and keeps the requests in `asked`; None leaves the request open
    until the client closes it. *options* are those of `AsgiServer`.
    """

    def __init__(
        self, answer: Callable[[RecordedRequest], StubResponse | None], **options: Any
    ) -> None:
        self._answer = answer
        self.asked: list[RecordedRequest] = []
        self.abandoned = 0
        """How many requests that were left open the client has closed."""
        super().__init__(self._serve, **options)

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        asked = RecordedRequest(
            scope["method"],
            scope["raw_path"].decode(),
            parse_qs(scope["query_string"].decode(), keep_blank_values=True),
            {name.decode(): value.decode("latin-1") for name, value in scope["headers"]},
            body,
        )
        self.asked.append(asked)
        answer = self._answer(asked)
        if answer is None:
            await asyncio.wait_for(receive(), 20)
            self.abandoned += 1
            return
        headers = {"content-type": "application/json; charset=utf-8"} | dict(answer.headers)
        content = (
            answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        )
        await send(
            {
                "type": "http.response.start",
                "status": answer.status,
                "headers": [(n.encode(), v.encode("latin-1")) for n, v in headers.items()],
            }
        )
        await send(
            {"type": "http.response.body", "body": b"" if asked.method == "HEAD" else content}
        )


SECRET = "the-secret-of-somebody-else"

TOOLS: dict[str, dict[str, Any]] = {
    "fs_list": {},
    "workspace_list": {"recursive": True},
    "fs_read_text": {},
    "workspace_read": {},
    "vault_list": {},
    "vault_read": {},
    "vault_write": {"content": "x"},
    "workspace_write": {"content": "x"},
    "fs_write_text": {"text": "x"},
    "fs_delete": {"recursive": True},
}
"""Those that read come first: where one of them gets out, the test ends before anything breaks."""

FIELDS = {"vault_list": "folder"}
"""What the path is called, where not `path`."""


def arguments(tool: str, path: str) -> dict[str, Any]:
    """Return a tool's arguments with that path."""
    return {FIELDS.get(tool, "path"): path, **TOOLS[tool]}


class PackDefaults:
    """What packs are told: nothing, so they take their defaults."""

    def settings(self, kind: type[Any]) -> Any:
        return kind()


class TenantFiles:
    """Two tenants and something outside, as bytes on the disk."""

    def __init__(self, folder: Path, resolver: str) -> None:
        self.folder = folder
        self.root = folder / "workspaces"
        self.home = self.root / "acme"
        for path in ("outside/secret.txt", "workspaces/globex/secret.txt"):
            (folder / path).parent.mkdir(parents=True)
            (folder / path).write_text(SECRET)
            (folder / f"{path}.md").write_text(SECRET)
        for tenant in ("acme", "globex"):
            kept = self.root / ".gatepost" / tenant / "memory/kept"
            kept.parent.mkdir(parents=True)
            kept.write_text(SECRET)
        self.home.mkdir()
        made: Any = resolver
        self.spaces = Workspaces(self.root, resolver=resolver_of(made))
        packs = (filesystem.pack, workspace.pack, memory.pack, vault.pack)
        offers = [offer for pack in packs for offer in pack.offers]
        told: Any = PackDefaults()
        self.client = EndpointClient(offers, workspaces=self.spaces, tool_services=told)
        self.client.caller = a_caller(
            scopes=frozenset(scopes_of(["filesystem", "workspace", "memory", "vault"]))
        )

    async def call(self, tool: str, path: str) -> tuple[bool, str]:
        """Return whether the call failed, and its whole answer; assert that it never breaks."""
        response = await self.client.call(tool, arguments(tool, path))
        text = response.body.decode()
        assert SECRET not in text, (tool, path)
        assert "unexpectedly" not in text, (tool, path)
        assert str(self.folder) not in text, (tool, path)
        return response.json["result"]["isError"], text

    def cleared(self) -> Path:
        """Empty the workspace and return it."""
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir()
        return self.home

    def others(self) -> dict[str, str]:
        """Return everything outside acme's workspace, with its content."""
        return {
            str(path.relative_to(self.folder)): path.read_text() if path.is_file() else "folder"
            for path in sorted(self.folder.rglob("*"))
            if not path.is_relative_to(self.home)
            and path.name != ".usage"
            and ".made" not in path.parts
        }


@pytest.fixture(params=["kernel", "walk"])
def tenant_files(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TenantFiles]:
    """Yield a workspace for each way of opening a path."""
    if request.param == "kernel" and not kernel_resolves():
        pytest.skip("this kernel has no openat2")
    made = TenantFiles(tmp_path, request.param)
    yield made
    made.spaces.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackServer]:
    """Serve as many tenants as the tests need, each with a small quota."""
    folder = tmp_path_factory.mktemp("office")
    room = {
        "root": str(folder / "workspaces"),
        "quota_bytes": 1_000_000,
        "quota_files": 200,
    }
    with open_server(
        folder, ["filesystem", "workspace", "memory", "vault"], workspace=room
    ) as server:
        yield server


@pytest.fixture(params=["mcp", "rest"])
def agent(server: PackServer, request: pytest.FixtureRequest) -> PackCaller:
    """Return an agent of a tenant of its own, who calls by one of the two protocols."""
    return server.agent(request.param)
