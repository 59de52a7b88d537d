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

from gatepost.packs import filesystem, memory, workspace
from gatepost.workspace import Workspaces, kernel_resolves, resolver_of
from tests.packs.office import Office, scopes_of
from tests.support.mcp import Client, a_caller

SECRET = "the-secret-of-somebody-else"

TOOLS: dict[str, dict[str, Any]] = {
    "fs_list": {},
    "workspace_list": {"recursive": True},
    "fs_read_text": {},
    "workspace_read": {},
    "workspace_write": {"content": "x"},
    "fs_write_text": {"text": "x"},
    "fs_delete": {"recursive": True},
}
"""Those that read come first: where one of them gets out, the test ends before anything breaks."""

LEADS_OUT = [
    "..",
    "../",
    "../..",
    "../globex",
    "../globex/secret.txt",
    "../../outside/secret.txt",
    "a/..",
    "a/../..",
    "a/../../globex/secret.txt",
    "a/b/../../../globex/secret.txt",
    "./../globex/secret.txt",
    ".././globex",
    "..//globex",
    "/workspace/..",
    "/workspace/../globex/secret.txt",
    "/workspace/../../outside/secret.txt",
    "/workspace/a/../../globex/secret.txt",
    "/workspace//etc/passwd",
    "/workspace/./../etc/passwd",
    "/workspace/../workspace/../../etc/passwd",
    "/etc/passwd",
    "//etc/passwd",
    "///",
    "/",
    "/..",
    "/../../etc/passwd",
    "/proc/self/environ",
    "/proc/self/root/etc/passwd",
    "/proc/self/fd/0",
    "/dev/zero",
    "/dev/fd/1",
    "/workspaces/globex/secret.txt",
    "/workspace2/secret.txt",
    "/Workspace/secret.txt",
    "/vault/secret.txt",
    "../.gatepost",
    "../.gatepost/acme/.usage",
    "../.gatepost/acme/memory/kept",
    "/workspace/../.gatepost/globex/memory/kept",
    "../acme/../globex/secret.txt",
]

ODD = [
    "",
    "a\0",
    "\0",
    "secret.txt\0.md",
    "../globex/secret.txt\0.md",
    "a\nb",
    "a\rb",
    "a\tb",
    "a\x1b[2Jb",
    "a\x7f",
    "a\x85b",
    "a\u2028b",
    "a\u2029b",
    "a\u202etxt.exe",
    "a\u2066b",
    "a//b",
    "file:///etc/passwd",
    "a/./b",
    "./a",
    "a/.",
    "a//",
    "x" * 256,
    "ü" * 128,
    "\U0001f600" * 64,
    "a/" * 32 + "a",
    "a/" * 2048 + "a",
    "../" * 2000,
    "x" * 100_000,
    ".0123456789abcdef.partial",
    "a/.0123456789ABCDEF.partial/b",
]

HALVES = ["\\udc80", "a\\ud800b", "..\\udc2f", "\\udcff/\\udcfe", "\\udc00\\ud800"]
"""Halves of characters, as JSON writes them: the way in for names that are no UTF-8."""

HARMLESS = [
    "..%2fglobex%2fsecret.txt",
    "%2e%2e/globex/secret.txt",
    "..%252fglobex",
    "..\\globex\\secret.txt",
    "\\\\globex\\secret.txt",
    "C:\\secret.txt",
    "~/secret.txt",
    "~globex/secret.txt",
    "$HOME/secret.txt",
    "file:etc/passwd",
    "\uff0e\uff0e/globex/secret.txt",
    "..\u2215globex\u2215secret.txt",
    "...",
    "..../globex/secret.txt",
    ".. /globex/secret.txt",
    "a; cat secret.txt",
    "$(cat secret.txt)",
    "-rf",
    "*",
    "CON",
    "workspace/secret.txt",
    ".gatepost/globex/memory/kept",
    "a\u200d..",
]
"""Names that mean something elsewhere, and here are names."""


class Yard:
    """Two tenants and something outside, as bytes on the disk."""

    def __init__(self, folder: Path, resolver: str) -> None:
        self.folder = folder
        self.root = folder / "workspaces"
        self.home = self.root / "acme"
        for path in ("outside/secret.txt", "workspaces/globex/secret.txt"):
            (folder / path).parent.mkdir(parents=True)
            (folder / path).write_text(SECRET)
        for tenant in ("acme", "globex"):
            kept = self.root / ".gatepost" / tenant / "memory/kept"
            kept.parent.mkdir(parents=True)
            kept.write_text(SECRET)
        self.home.mkdir()
        made: Any = resolver
        self.spaces = Workspaces(self.root, resolver=resolver_of(made))
        packs = (filesystem.pack, workspace.pack, memory.pack)
        offers = [offer for pack in packs for offer in pack.offers]
        self.client = Client(offers, workspaces=self.spaces)
        self.client.caller = a_caller(
            scopes=frozenset(scopes_of(["filesystem", "workspace", "memory"]))
        )

    async def call(self, tool: str, path: str) -> tuple[bool, str]:
        """Whether it failed, and all that was answered; it never breaks."""
        response = await self.client.call(tool, {"path": path, **TOOLS[tool]})
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
            if not path.is_relative_to(self.home) and path.name != ".usage"
        }


@pytest.fixture(params=["kernel", "walk"])
def yard(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Yard]:
    """By either way of opening what a path names."""
    if request.param == "kernel" and not kernel_resolves():
        pytest.skip("this kernel has no openat2")
    made = Yard(tmp_path, request.param)
    yield made
    made.spaces.close()


def shown(path: str) -> str:
    return quote(path, safe="/.")[:60] or "empty"


@pytest.mark.requirement("P14", "X1", "P3")
@pytest.mark.parametrize("path", [*LEADS_OUT, *ODD], ids=shown)
async def test_a_bad_path_is_refused_by_every_tool(yard: Yard, path: str) -> None:
    """Refused before anything is opened or made, inside or outside."""
    before = yard.others()

    for tool in TOOLS:
        failed, text = await yard.call(tool, path)
        assert failed, (tool, text)

    assert yard.others() == before
    assert list(yard.home.iterdir()) == []


@pytest.mark.requirement("P14")
@pytest.mark.parametrize("path", HARMLESS, ids=shown)
async def test_what_means_something_elsewhere_is_a_name_here(yard: Yard, path: str) -> None:
    """Nothing decodes, expands or translates: it is written, read and deleted in its place."""
    before = yard.others()

    for tool in TOOLS:
        await yard.call(tool, path)
    await yard.call("fs_write_text", path)

    assert [one.read_text() for one in yard.home.rglob("*") if one.is_file()] == ["x"]
    assert (yard.home / path).read_text() == "x"
    assert {k: v for k, v in yard.others().items() if k in before} == before


def link(target: str) -> Callable[[Path, Path], None]:
    return lambda spot, folder: spot.symlink_to(target.replace("{folder}", str(folder)))


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
    (spot.parent / "hop").symlink_to("../globex")
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
    yard: Yard, planted: str, below: str
) -> None:
    """Links in every place, hard links, pipes, sockets, odd bytes: each tool, each time anew."""
    before = yard.others()

    for tool in TOOLS:
        spot = yard.cleared() / "spot"
        PLANTED[planted](spot, yard.folder)
        failed, text = await yard.call(tool, f"spot{below}")
        if "list" in tool and planted != "name of odd bytes":
            assert failed, (tool, text)
        if "read" in tool:
            assert failed, (tool, text)
        if "write" in tool and not failed:
            # What is written replaces the link, and does not go through it.
            assert not spot.is_symlink()

    assert yard.others() == before


@pytest.mark.requirement("P14")
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("tool", TOOLS)
async def test_half_characters_name_nothing(yard: Yard, tool: str, half: str) -> None:
    """They would be bytes that are no UTF-8 where Python meets the file system."""
    params = {"name": tool, "arguments": {"path": "@@", **TOOLS[tool]}}
    session = await yard.client.open()
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})

    response = await yard.client.within(session, body.replace("@@", half).encode())

    assert "error" in response.json or response.json["result"]["isError"]
    assert list(yard.home.iterdir()) == []


@pytest.mark.requirement("P14")
@pytest.mark.parametrize("path", [*LEADS_OUT, *ODD], ids=shown)
def test_a_bad_path_is_refused_by_rest_too(office: Office, path: str) -> None:
    """The same rules whoever asks, with the argument named."""
    worker = office.worker("rest", "hostile")
    for tool, more in TOOLS.items():
        heard = worker.call(tool, path=path, **more)
        assert heard.kind == "validation", (tool, heard)

    assert not worker.folder.exists() or not list(worker.folder.iterdir())


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
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.one_of(
        st.lists(PIECES, max_size=8).map("/".join),
        st.lists(PIECES, max_size=8).map("".join),
        st.text(max_size=30),
    )
)
async def test_no_text_at_all_leads_out(yard: Yard, path: str) -> None:
    """Whatever the path: nothing of others is shown, changed, or added to."""
    (yard.cleared() / "link").symlink_to("../globex")
    before = yard.others()
    if any("\ud800" <= character <= "\udfff" for character in path):
        return
    for tool in TOOLS:
        await yard.call(tool, path)

    assert yard.others() == before
