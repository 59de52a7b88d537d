"""No path leads a tool out of its tenant's workspace, however it is written."""

import json
import shutil
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.packs.conftest import TOOLS, PackServer, TenantFiles, arguments
from tests.support.measuring import each

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

RESPELT_PATHS = {
    "./a": "a",
    "a//b": "a/b",
    "a/./b": "a/b",
    "././a/.//b": "a/b",
    "/workspace/./a": "a",
    "/workspace/a//b": "a/b",
    "/workspace//etc/passwd": "etc/passwd",
    "/workspace///.//a/b": "a/b",
}
"""Spellings of a file, and what they mean."""

REFUSED_PATHS = [
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
    "file:///etc/passwd",
    "https://example.com/a",
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

SURROGATE_PATHS = ["\\udc80", "a\\ud800b", "..\\udc2f", "\\udcff/\\udcfe", "\\udc00\\ud800"]
"""Halves of characters, as JSON writes them: the way in for names that are no UTF-8."""

HARMLESS_PATHS = [
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


def is_bad_path(tool: str, path: str) -> bool:
    """Return whether a bad path is also bad for that tool: the vault is a root of its own."""
    return not (tool.startswith("vault_") and path.startswith("/vault/"))


def files_in(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def path_id(path: str) -> str:
    return quote(path, safe="/.")[:60] or "empty"


@pytest.mark.requirement("P14", "X1", "P3")
@each("path", [*LEADS_OUT, *REFUSED_PATHS], ids=path_id)
async def test_a_bad_path_is_refused_by_every_tool(tenant_files: TenantFiles, path: str) -> None:
    """Refused before anything is opened or made, inside or outside."""
    before = tenant_files.others()

    for tool in TOOLS:
        if is_bad_path(tool, path):
            failed, text = await tenant_files.call(tool, path)
            assert failed, (tool, text)

    assert tenant_files.others() == before
    assert list(tenant_files.home.iterdir()) == []


@pytest.mark.requirement("X1", "P3", "P5", "P14")
@pytest.mark.parametrize("path", RESPELT_PATHS, ids=path_id)
async def test_another_spelling_is_the_same_file_for_every_tool(
    tenant_files: TenantFiles, path: str
) -> None:
    """`.` and empty names are ignored; the answer has the plain path."""
    plain = RESPELT_PATHS[path]
    in_vault = path.replace("/workspace/", "/vault/")
    for write, name, where in (
        ("fs_write_text", path, plain),
        ("workspace_write", path, plain),
        ("vault_write", in_vault, f"vault/{plain}.md"),
    ):
        tenant_files.cleared()
        failed, text = await tenant_files.call(write, name)
        assert not failed, text
        assert [
            str(path.relative_to(tenant_files.home)) for path in files_in(tenant_files.home)
        ] == [where]

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
    """A list gives names relative to the folder, too."""
    await tenant_files.call("fs_write_text", "a/b/c")
    await tenant_files.call("vault_write", "a/b/c")
    listed = await tenant_files.call("fs_list", folder)
    answer = await tenant_files.call("workspace_list", folder)
    notes = await tenant_files.call("vault_list", folder.replace("/workspace/", "/vault/"))

    assert (listed[0], answer[0], notes[0]) == (False, False, False)
    assert '\\"c\\"' in listed[1] or '["c"]' in listed[1]
    assert '"name":"c","path":"/workspace/a/b/c"' in answer[1]
    assert '"path":"/vault/a/b/c.md"' in notes[1]


@pytest.mark.requirement("X1", "P3")
@pytest.mark.parametrize(
    "folder", [".", "./", ".//", "./.", "/workspace", "/workspace/", "/workspace//"]
)
async def test_every_spelling_of_the_root_lists_it(tenant_files: TenantFiles, folder: str) -> None:
    """None of them deletes it."""
    await tenant_files.call("fs_write_text", "kept")
    failed, text = await tenant_files.call("workspace_list", folder)

    assert not failed
    assert '"path":"/workspace/kept"' in text
    assert (await tenant_files.call("fs_delete", folder))[0]
    assert (tenant_files.home / "kept").exists()


@pytest.mark.requirement("P14")
@pytest.mark.parametrize("path", HARMLESS_PATHS, ids=path_id)
async def test_special_path_syntax_of_other_programs_is_a_plain_name(
    tenant_files: TenantFiles, path: str
) -> None:
    """No tool decodes or expands the name: it is written, read and deleted as given."""
    before = tenant_files.others()

    for tool in TOOLS:
        await tenant_files.call(tool, path)
    await tenant_files.call("fs_write_text", path)
    # A name with a leading dot is Obsidian's own, or git's.
    assert (tenant_files.home / "vault" / f"{path}.md").is_file() != path.startswith(".")
    shutil.rmtree(tenant_files.home / "vault", ignore_errors=True)

    assert [path.read_text() for path in tenant_files.home.rglob("*") if path.is_file()] == ["x"]
    assert (tenant_files.home / path).read_text() == "x"
    assert {k: v for k, v in tenant_files.others().items() if k in before} == before


@pytest.mark.requirement("P14")
@pytest.mark.parametrize("half", SURROGATE_PATHS)
@pytest.mark.parametrize("tool", TOOLS)
async def test_a_path_with_a_lone_surrogate_is_refused(
    tenant_files: TenantFiles, tool: str, half: str
) -> None:
    """Such a path would become invalid UTF-8 in the file system."""
    params = {"name": tool, "arguments": arguments(tool, "@@")}
    session = await tenant_files.client.open()
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})

    response = await tenant_files.client.within(session, body.replace("@@", half).encode())

    assert "error" in response.json or response.json["result"]["isError"]
    assert list(tenant_files.home.iterdir()) == []


@pytest.mark.requirement("P14")
@each("path", [*LEADS_OUT, *REFUSED_PATHS], ids=path_id)
def test_a_bad_path_is_refused_by_rest_too(server: PackServer, path: str) -> None:
    """REST refuses the same paths as MCP and leaves the workspace empty."""
    agent = server.agent("rest", "hostile")
    for tool in TOOLS:
        if is_bad_path(tool, path):
            reply = agent.call(tool, **arguments(tool, path))
            assert reply.kind == "validation", (tool, reply)

    assert not agent.folder.exists() or not list(agent.folder.iterdir())


PATH_PIECES = st.sampled_from(
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
        st.lists(PATH_PIECES, max_size=8).map("/".join),
        st.lists(PATH_PIECES, max_size=8).map("".join),
        st.text(max_size=30),
    )
)
async def test_no_path_text_leads_out_of_the_workspace(
    tenant_files: TenantFiles, path: str
) -> None:
    """No path shows, changes or adds a file outside the workspace."""
    (tenant_files.cleared() / "link").symlink_to("../globex")
    before = tenant_files.others()
    if any("\ud800" <= character <= "\udfff" for character in path):
        return
    for tool in TOOLS:
        await tenant_files.call(tool, path)

    assert tenant_files.others() == before
