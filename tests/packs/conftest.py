"""One server with the packs of files, and two tenants whose files every path must keep apart."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.workspace import Workspaces, kernel_resolves, resolver_of
from gatepost_packs import filesystem, memory, workspace
from gatepost_packs.vault import tools as vault
from tests.packs.servers import Agent, PackServer, open_server, scopes_of
from tests.support.endpoint import EndpointClient, a_caller

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
    """A tool's arguments with that path."""
    return {FIELDS.get(tool, "path"): path, **TOOLS[tool]}


class Told:
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
        told: Any = Told()
        self.client = EndpointClient(offers, workspaces=self.spaces, kit=told)
        self.client.caller = a_caller(
            scopes=frozenset(scopes_of(["filesystem", "workspace", "memory", "vault"]))
        )

    async def call(self, tool: str, path: str) -> tuple[bool, str]:
        """Whether it failed, and all that was answered; it never breaks."""
        response = await self.client.call(tool, arguments(tool, path))
        text = response.body.decode()
        assert SECRET not in text, (tool, path)
        assert "unexpectedly" not in text, (tool, path)
        assert str(self.folder) not in text, (tool, path)
        return response.json["result"]["isError"], text

    def cleared(self) -> Path:
        """The workspace with nothing in it."""
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir()
        return self.home

    def others(self) -> dict[str, str]:
        """Everything that is not acme's workspace, with what is in it."""
        return {
            str(path.relative_to(self.folder)): path.read_text() if path.is_file() else "folder"
            for path in sorted(self.folder.rglob("*"))
            if not path.is_relative_to(self.home)
            and path.name != ".usage"
            and ".made" not in path.parts
        }


@pytest.fixture(params=["kernel", "walk"])
def tenant_files(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TenantFiles]:
    """By either way of opening what a path names."""
    if request.param == "kernel" and not kernel_resolves():
        pytest.skip("this kernel has no openat2")
    made = TenantFiles(tmp_path, request.param)
    yield made
    made.spaces.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackServer]:
    """As many tenants as the tests need, each with little room."""
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
def agent(server: PackServer, request: pytest.FixtureRequest) -> Agent:
    """An agent of a tenant of its own, who calls by one of the two protocols."""
    return server.agent(request.param)
