"""No path and nothing that stands at a path leads a tool out of its tenant's workspace."""

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gatepost.workspace import Workspaces, kernel_resolves, resolver_of
from gatepost_packs import filesystem, memory, workspace
from gatepost_packs.vault import tools as vault
from tests.packs.paths import HALVES, HARMLESS, LEADS_OUT, ODD, RESPELT
from tests.packs.servers import PackServer, scopes_of
from tests.support.cases import each
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


def leads_astray(tool: str, path: str) -> bool:
    """Whether a bad path is bad for that tool: the vault is a root of its own."""
    return not (tool.startswith("vault_") and path.startswith("/vault/"))


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


def files_in(folder: Path) -> list[Path]:
    return [one for one in sorted(folder.rglob("*")) if one.is_file()]


def shown(path: str) -> str:
    return quote(path, safe="/.")[:60] or "empty"


@pytest.mark.requirement("P14", "X1", "P3")
@each("path", [*LEADS_OUT, *ODD], ids=shown)
async def test_a_bad_path_is_refused_by_every_tool(tenant_files: TenantFiles, path: str) -> None:
    """Refused before anything is opened or made, inside or outside."""
    before = tenant_files.others()

    for tool in TOOLS:
        if leads_astray(tool, path):
            failed, text = await tenant_files.call(tool, path)
            assert failed, (tool, text)

    assert tenant_files.others() == before
    assert list(tenant_files.home.iterdir()) == []


@pytest.mark.requirement("X1", "P3", "P5", "P14")
@pytest.mark.parametrize("path", RESPELT, ids=shown)
async def test_another_spelling_is_the_same_file_for_every_tool(
    tenant_files: TenantFiles, path: str
) -> None:
    """`.` and empty names lead nowhere; what is answered is the plain path."""
    plain = RESPELT[path]
    in_vault = path.replace("/workspace/", "/vault/")
    for write, name, where in (
        ("fs_write_text", path, plain),
        ("workspace_write", path, plain),
        ("vault_write", in_vault, f"vault/{plain}.md"),
    ):
        tenant_files.cleared()
        failed, text = await tenant_files.call(write, name)
        assert not failed, text
        assert [str(one.relative_to(tenant_files.home)) for one in files_in(tenant_files.home)] == [
            where
        ]

    tenant_files.cleared()
    await tenant_files.call("fs_write_text", plain)
    await tenant_files.call("vault_write", plain)
    for tool, name in (
        ("fs_read_text", path),
        ("workspace_read", path),
        ("vault_read", in_vault),
        ("vault_read", f"{in_vault}.md"),
    ):
        failed, text = await tenant_files.call(tool, name)
        assert not failed, (tool, text)
        if tool == "vault_read":
            assert f'"path":"/vault/{plain}.md"' in text
    assert not (await tenant_files.call("fs_delete", path))[0]
    assert not (tenant_files.home / plain).exists()


@pytest.mark.requirement("X1", "P3", "P5")
@pytest.mark.parametrize(
    "folder",
    ["a/b", "./a//b", "a/./b/", "a//b//", "./a/b/.", "/workspace/a//b", "/workspace//a/b"],
)
async def test_another_spelling_is_the_same_folder_for_every_tool(
    tenant_files: TenantFiles, folder: str
) -> None:
    """Also for a list, which says names relative to it."""
    await tenant_files.call("fs_write_text", "a/b/c")
    await tenant_files.call("vault_write", "a/b/c")
    listed = await tenant_files.call("fs_list", folder)
    found = await tenant_files.call("workspace_list", folder)
    notes = await tenant_files.call("vault_list", folder.replace("/workspace/", "/vault/"))

    assert (listed[0], found[0], notes[0]) == (False, False, False)
    assert '\\"c\\"' in listed[1] or '["c"]' in listed[1]
    assert '"name":"c","path":"/workspace/a/b/c"' in found[1]
    assert '"path":"/vault/a/b/c.md"' in notes[1]


@pytest.mark.requirement("X1", "P3")
@pytest.mark.parametrize(
    "folder", [".", "./", ".//", "./.", "/workspace", "/workspace/", "/workspace//"]
)
async def test_every_spelling_of_the_root_lists_it(tenant_files: TenantFiles, folder: str) -> None:
    """And none of them deletes it."""
    await tenant_files.call("fs_write_text", "kept")
    failed, text = await tenant_files.call("workspace_list", folder)

    assert not failed
    assert '"path":"/workspace/kept"' in text
    assert (await tenant_files.call("fs_delete", folder))[0]
    assert (tenant_files.home / "kept").exists()


@pytest.mark.requirement("P14")
@pytest.mark.parametrize("path", HARMLESS, ids=shown)
async def test_what_means_something_elsewhere_is_a_name_here(
    tenant_files: TenantFiles, path: str
) -> None:
    """Nothing decodes, expands or translates: it is written, read and deleted in its place."""
    before = tenant_files.others()

    for tool in TOOLS:
        await tenant_files.call(tool, path)
    await tenant_files.call("fs_write_text", path)
    # A name with a leading dot is Obsidian's own, or git's.
    assert (tenant_files.home / "vault" / f"{path}.md").is_file() != path.startswith(".")
    shutil.rmtree(tenant_files.home / "vault", ignore_errors=True)

    assert [one.read_text() for one in tenant_files.home.rglob("*") if one.is_file()] == ["x"]
    assert (tenant_files.home / path).read_text() == "x"
    assert {k: v for k, v in tenant_files.others().items() if k in before} == before


def link(target: str) -> Callable[[Path, Path], None]:
    def make(spot: Path, folder: Path) -> None:
        up = "" if spot.parent.name == "acme" else "../"
        relative = target.startswith("..")
        spot.symlink_to((up if relative else "") + target.replace("{folder}", str(folder)))

    return make


def hard(spot: Path, folder: Path) -> None:
    os.link(folder / "outside/secret.txt", spot)


def pipe(spot: Path, folder: Path) -> None:
    os.mkfifo(spot)


def listener(spot: Path, folder: Path) -> None:
    here = Path.cwd()
    with socket.socket(socket.AF_UNIX) as made:
        os.chdir(spot.parent)  # the address of a socket is at most 107 bytes long
        made.bind(spot.name)
        os.chdir(here)


def loop(spot: Path, folder: Path) -> None:
    spot.symlink_to(spot.name)


def chain(spot: Path, folder: Path) -> None:
    link("../globex")(spot.parent / "hop", folder)
    spot.symlink_to("hop")


def odd_bytes(spot: Path, folder: Path) -> None:
    spot.mkdir()
    with open(os.fsencode(spot) + b"/\xff\xfe.txt", "wb") as file:
        file.write(SECRET.encode())


PLANTED: dict[str, Callable[[Path, Path], None]] = {
    "link to a file": link("{folder}/outside/secret.txt"),
    "link to a folder": link("{folder}/outside"),
    "relative link to a file": link("../globex/secret.txt"),
    "relative link to a folder": link("../globex"),
    "link to the root of all": link(".."),
    "link to /": link("/"),
    "link to itself": loop,
    "link to a link": chain,
    "dangling link": link("{folder}/outside/new.txt"),
    "link to what is kept": link("../.gatepost/globex/memory"),
    "link to /proc/self/root": link("/proc/self/root"),
    "link to /proc/self/cwd": link("/proc/self/cwd"),
    "link to /dev/zero": link("/dev/zero"),
    "link to /dev/stdin": link("/dev/stdin"),
    "hard link": hard,
    "pipe": pipe,
    "socket": listener,
    "name of odd bytes": odd_bytes,
}


@pytest.mark.requirement("P14")
@pytest.mark.parametrize("planted", PLANTED)
@pytest.mark.parametrize("below", ["", "/secret.txt", "/globex/secret.txt", "/etc/passwd", "/new"])
async def test_nothing_that_stands_in_a_workspace_leads_out(
    tenant_files: TenantFiles, planted: str, below: str
) -> None:
    """Links in every place, hard links, pipes, sockets, odd bytes: each tool, each time anew."""
    before = tenant_files.others()

    for tool in TOOLS:
        spot = tenant_files.cleared() / "spot"
        if tool.startswith("vault_"):
            spot = tenant_files.home / "vault" / ("spot" if below or "list" in tool else "spot.md")
            spot.parent.mkdir()
        PLANTED[planted](spot, tenant_files.folder)
        failed, text = await tenant_files.call(tool, f"spot{below}")
        if "list" in tool and planted != "name of odd bytes":
            assert failed, (tool, text)
        if "read" in tool:
            assert failed, (tool, text)
        if "write" in tool and not failed:
            # What is written replaces the link, and does not go through it.
            assert not spot.is_symlink()

    assert tenant_files.others() == before


@pytest.mark.requirement("P14")
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("tool", TOOLS)
async def test_half_characters_name_nothing(
    tenant_files: TenantFiles, tool: str, half: str
) -> None:
    """They would be bytes that are no UTF-8 where Python meets the file system."""
    params = {"name": tool, "arguments": arguments(tool, "@@")}
    session = await tenant_files.client.open()
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})

    response = await tenant_files.client.within(session, body.replace("@@", half).encode())

    assert "error" in response.json or response.json["result"]["isError"]
    assert list(tenant_files.home.iterdir()) == []


@pytest.mark.requirement("P14")
@each("path", [*LEADS_OUT, *ODD], ids=shown)
def test_a_bad_path_is_refused_by_rest_too(server: PackServer, path: str) -> None:
    """The same rules whoever asks, with the argument named."""
    agent = server.agent("rest", "hostile")
    for tool in TOOLS:
        if leads_astray(tool, path):
            reply = agent.call(tool, **arguments(tool, path))
            assert reply.kind == "validation", (tool, reply)

    assert not agent.folder.exists() or not list(agent.folder.iterdir())


PIECES = st.sampled_from(
    [
        "..",
        ".",
        "",
        "/",
        "workspace",
        "globex",
        "secret.txt",
        "link",
        "a",
        "\0",
        "é",
        "~",
        ".gatepost",
    ]
)


@pytest.mark.requirement("P14")
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.one_of(
        st.lists(PIECES, max_size=8).map("/".join),
        st.lists(PIECES, max_size=8).map("".join),
        st.text(max_size=30),
    )
)
async def test_no_text_at_all_leads_out(tenant_files: TenantFiles, path: str) -> None:
    """Whatever the path: nothing of others is shown, changed, or added to."""
    (tenant_files.cleared() / "link").symlink_to("../globex")
    before = tenant_files.others()
    if any("\ud800" <= character <= "\udfff" for character in path):
        return
    for tool in TOOLS:
        await tenant_files.call(tool, path)

    assert tenant_files.others() == before
