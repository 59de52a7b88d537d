"""A tenant's directory has no way out."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gatepost.execution.failure import ToolFailure
from gatepost.workspace import (
    Kernel,
    Resolver,
    TenantWorkspace,
    Walk,
    Workspaces,
    kernel_resolves,
    parts_of,
    problem_of,
    resolver_of,
)
from gatepost.workspace.path import listed_paths
from tests.support.measuring import each


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "workspaces"


@pytest.fixture(params=["kernel", "walk"])
def workspaces(root: Path, request: pytest.FixtureRequest) -> Iterator[Workspaces]:
    """Yield the workspaces with either way to open a path; both keep the same promises."""
    if request.param == "kernel" and not kernel_resolves():
        pytest.skip("this kernel has no openat2")
    workspaces_made = Workspaces(root, resolver=resolver_of(request.param))
    yield workspaces_made
    workspaces_made.close()


@pytest.fixture
def acme(workspaces: Workspaces) -> TenantWorkspace:
    return workspaces.for_tenant("acme")


async def test_a_written_file_can_be_read(acme: TenantWorkspace, root: Path) -> None:
    """The answer is the path as tools show it, and either spelling reads it."""
    written = await acme.write("2024/invoice.csv", b"1,2")
    await acme.write("/workspace/2024/invoice.csv", b"3,4")

    assert written == "/workspace/2024/invoice.csv"
    assert await acme.read("2024/invoice.csv", limit=100) == b"3,4"
    assert await acme.read(written, limit=3) == b"3,4"
    assert (root / "acme/2024/invoice.csv").read_bytes() == b"3,4"
    assert [path.name for path in (root / "acme/2024").iterdir()] == ["invoice.csv"]


async def test_files_are_accessible_to_their_owner_only(acme: TenantWorkspace, root: Path) -> None:
    """Other accounts of the machine neither list nor read them."""
    await acme.write("a/b", b"")

    assert [(root / path).stat().st_mode & 0o077 for path in (".", "acme", "acme/a/b")] == [0, 0, 0]


BAD_PATHS = [
    "",
    "/",
    "/etc/passwd",
    "/workspace",
    "/workspace/",
    "/workspace//",
    "/workspace//../x",
    "//workspace/a",
    "/workspace/../x",
    "../globex/secret",
    "a/../../globex/secret",
    "..",
    ".",
    "a/",
    "a/.",
    "a//",
    ".//",
    "./..",
    "a://b",
    "a//../../globex/secret",
    "a\0b",
    "a\nb",
    "\x7f",
    "\udc80",
    "x" * 256,
    "ü" * 128,
    "/".join("a" * 40),
    "a/" * 3000 + "a",
    ".0123456789abcdef.partial",
    "a/.0123456789ABCDEF.PARTIAL/b",
]


@each("path", BAD_PATHS)
async def test_an_invalid_path_is_refused(acme: TenantWorkspace, root: Path, path: str) -> None:
    """It is not repaired, and no folder is made."""
    for attempt in (acme.write(path, b"x"), acme.read(path, limit=10)):
        with pytest.raises(ToolFailure) as raised:
            await attempt
        assert raised.value.failure.kind == "validation"
    assert os.listdir(root) == []


async def test_a_tenant_never_reaches_another_tenants_files(
    workspaces: Workspaces, root: Path
) -> None:
    """Neither a name nor a link in place of a file or folder leads to another tenant."""
    await workspaces.for_tenant("globex").write("secret", b"theirs")
    acme = workspaces.for_tenant("acme")
    await acme.write("mine", b"ours")
    (root / "acme/file").symlink_to(root / "globex/secret")
    (root / "acme/folder").symlink_to(root / "globex")
    (root / "acme/up").symlink_to("..")

    for path in ("file", "folder/secret", "up/globex/secret", "secret"):
        with pytest.raises(ToolFailure):
            await acme.read(path, limit=100)
    for path in ("folder/secret", "up/globex/secret", "folder/new"):
        with pytest.raises(ToolFailure):
            await acme.write(path, b"x")
    await acme.write("file", b"x")

    assert (root / "globex/secret").read_bytes() == b"theirs"
    assert not (root / "acme/file").is_symlink()
    assert sorted(os.listdir(root / "globex")) == ["secret"]


async def test_a_tenants_folder_that_is_a_link_is_not_followed(
    workspaces: Workspaces, root: Path
) -> None:
    """It is not followed even if an operator put it there."""
    (root / "elsewhere").mkdir()
    (root / "acme").symlink_to(root / "elsewhere")

    with pytest.raises(ToolFailure):
        await workspaces.for_tenant("acme").write("a", b"x")
    assert list((root / "elsewhere").iterdir()) == []


async def test_only_plain_files_are_opened(acme: TenantWorkspace, root: Path) -> None:
    """Reading a pipe would block a thread for ever; a folder is not overwritten."""
    await acme.write("folder/file", b"x")
    os.mkfifo(root / "acme/pipe")

    for path in ("pipe", "folder", "folder/file/below"):
        with pytest.raises(ToolFailure) as raised:
            await acme.read(path, limit=10)
        assert str(root) not in raised.value.failure.message
    for path in ("folder", "folder/file/below"):
        with pytest.raises(ToolFailure):
            await acme.write(path, b"x")


async def test_a_missing_file_and_a_too_large_file_have_different_errors(
    acme: TenantWorkspace,
) -> None:
    """One is not found, and the other exceeds the requested limit."""
    await acme.write("a", b"12345")

    with pytest.raises(ToolFailure) as missing:
        await acme.read("b", limit=10)
    with pytest.raises(ToolFailure) as large:
        await acme.read("a", limit=4)

    assert missing.value.failure.kind == "not_found"
    assert large.value.failure.kind == "validation"


@given(st.text(max_size=40))
def test_every_accepted_path_consists_of_plain_names(path: str) -> None:
    """Any text is refused or becomes names that stay below the root."""
    try:
        parts = parts_of(path)
    except ToolFailure:
        return
    assert all(
        part not in ("", ".", "..") and "/" not in part and "\0" not in part for part in parts
    )
    names = path.removeprefix("/workspace/").split("/")
    assert parts == tuple(name for name in names if name not in ("", "."))


@pytest.mark.parametrize("path", ["/workspace", "/workspace/", "/workspace//", "/workspace/./"])
def test_the_root_of_the_workspace_is_no_file(path: str) -> None:
    """The refusal says so; such a path neither is empty nor leads out."""
    with pytest.raises(ToolFailure, match="names a folder: name a file in it"):
        parts_of(path)


async def test_files_are_listed_in_order(acme: TenantWorkspace, root: Path) -> None:
    """The list has their sizes and a maximum length, and is empty before the first write."""
    assert await acme.files(limit=10) == []
    for path in ("b/c.txt", "a.txt", "b/a/d.txt", "b.txt"):
        await acme.write(path, path.encode())
    files = await acme.files(limit=10)

    assert [file.path for file in files] == ["a.txt", "b.txt", "b/a/d.txt", "b/c.txt"]
    assert [file.size for file in files] == [5, 5, 9, 7]
    assert all(file.modified > 0 for file in files)
    assert len(await acme.files(limit=2)) == 2


async def test_a_listing_has_only_readable_files_and_follows_no_link(
    acme: TenantWorkspace, workspaces: Workspaces, root: Path
) -> None:
    """Links, pipes, half-written files and names that no path may hold are left out."""
    await acme.write("kept.txt", b"x")
    await workspaces.for_tenant("globex").write("secret.txt", b"x")
    home = root / "acme"
    (home / "elsewhere").symlink_to(root / "globex")
    (home / "link.txt").symlink_to(root / "globex/secret.txt")
    (home / ".0123456789abcdef.partial").write_bytes(b"")
    (home / "odd\nname").write_bytes(b"")
    os.mkfifo(home / "pipe")

    assert [file.path for file in await acme.files(limit=10)] == ["kept.txt"]


@given(
    folder=st.lists(st.sampled_from(["a", "b c", "d" * 250, "é"]), max_size=33).map(tuple),
    name=st.one_of(
        st.text("aZ09_ .-", min_size=1, max_size=256),
        st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=256),
        st.from_regex(r"\.[0-9a-f]{16}\.partial", fullmatch=True),
    ),
    hidden=st.booleans(),
)
def test_a_list_has_the_names_that_a_path_may_have(
    folder: tuple[str, ...], name: str, hidden: bool
) -> None:
    """Each name that is listed can be opened, and none that can be opened is left out."""
    path = "/".join((*folder, name))
    assume(not folder or problem_of("/".join(folder)) is None)
    is_listed = (hidden or not name.startswith(".")) and problem_of(path) is None

    assert [*listed_paths(folder, [name], hidden=hidden)] == [(name, path)] * is_listed


async def test_a_deep_path_is_opened_in_pieces(acme: TenantWorkspace) -> None:
    """The longest path there may be is longer than what one system call takes."""
    names = ["n" * 127] * 31 + ["m" * 128]
    path = "/".join(names)
    assert len(path) == 4096
    await acme.write(path, b"deep")

    assert await acme.read(path, limit=10) == b"deep"
    assert (await acme.stat("/".join(names[:20]))).type == "folder"
    assert await acme.delete(names[0], recursive=True)
    assert (await acme.entries(limit=10)).items == []


async def test_appending_keeps_the_content_and_the_executable_bit(
    acme: TenantWorkspace, root: Path
) -> None:
    """Appending also creates a missing file."""
    assert await acme.append("a/log", b"12") == 2
    (root / "acme/a/log").chmod(0o755)
    assert await acme.append("a/log", b"345") == 5

    head = await acme.head("a/log", limit=3)
    assert (head.data, head.size) == (b"123", 5)
    assert (root / "acme/a/log").stat().st_mode & 0o777 == 0o700
    with pytest.raises(ToolFailure):
        await acme.append("no/log", b"", mkdirs=False)


async def test_a_deletion_removes_a_whole_tree(acme: TenantWorkspace, root: Path) -> None:
    """Targets of links stay."""
    outside = root / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"x")
    await acme.make_folder("top")
    inner = root / "acme/top"
    for _ in range(200):
        inner /= "d"
        inner.mkdir()
        (inner / "f").write_bytes(b"x")
    (inner / "link").symlink_to(outside)
    os.mkfifo(inner / "pipe")
    before = await acme.usage()

    assert await acme.delete("top", recursive=True) is True
    assert await acme.delete("top") is False
    assert os.listdir(root / "acme") == []
    assert os.listdir(outside) == ["kept"]
    assert (before.bytes, before.files) == (200, 403)
    assert (await acme.usage()).files == 0


async def test_a_list_is_the_same_each_time_and_bounded(acme: TenantWorkspace) -> None:
    """A folder's entries come before deeper ones; a cut list says so."""
    for path in ("b/x", "a/y/z", "c"):
        await acme.write(path, b"1")

    whole = await acme.entries(recursive=True, limit=10)
    some = await acme.entries(recursive=True, limit=3)

    assert [item.path for item in whole.items] == ["a", "a/y", "a/y/z", "b", "b/x", "c"]
    assert not whole.cut
    assert [item.path for item in some.items] == ["a", "b", "c"]
    assert some.cut
    assert [item.path for item in (await acme.entries("a/", limit=1)).items] == ["a/y"]


async def test_a_pack_has_its_own_folder_outside_the_workspace(
    workspaces: Workspaces, root: Path
) -> None:
    """No path of the workspace leads there, and each tenant has its own."""
    acme, globex = workspaces.for_tenant("acme"), workspaces.for_tenant("globex")
    await acme.area("memory").write("a", b"ours")
    await globex.area("memory").write("a", b"theirs")

    assert await acme.area("memory").read("a", limit=10) == b"ours"
    assert (await acme.entries(recursive=True, limit=10)).items == []
    for name in ("", "..", "a/b", "Memory", ".usage"):
        with pytest.raises(ValueError, match="no name of an area"):
            acme.area(name)
    with pytest.raises(ToolFailure) as missing:
        await acme.area("memory").read("b", limit=10)
    assert missing.value.failure.message == "b does not exist."


@pytest.mark.skipif(not kernel_resolves(), reason="this kernel has no openat2")
@given(st.lists(st.sampled_from(["a", "b", "link", "file", "loop", "no"]), max_size=20))
def test_both_path_resolvers_open_the_same_file(parts: list[str]) -> None:
    """For any names both resolvers open the same file or fail."""
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        (top / "a/b/a").mkdir(parents=True)
        (top / "a/file").write_bytes(b"x")
        (top / "a/link").symlink_to("b")
        (top / "link").symlink_to("/")
        (top / "loop").symlink_to("loop")
        opened_paths = [opened_inode(resolver, top, parts) for resolver in (Kernel(), Walk())]

    assert opened_paths[0] == opened_paths[1]


def opened_inode(resolver: Resolver, top: Path, parts: list[str]) -> int | None:
    """Return the inode of the opened file, or None if it does not open."""
    root = os.open(top, os.O_RDONLY)
    try:
        handle = resolver.open(root, parts, os.O_RDONLY)
    except OSError:
        return None
    else:
        number = os.fstat(handle).st_ino
        os.close(handle)
        return number
    finally:
        os.close(root)


def test_no_handle_is_left_open(root: Path) -> None:
    """This holds for found and for missing paths."""
    (root / "a/b").mkdir(parents=True)
    for resolver in (resolver_of("walk"), resolver_of()):
        handles = len(os.listdir("/dev/fd"))
        for parts in (["a"], ["a", "b"], ["a", "no", "b"], ["no"], ["a"] * 40, []):
            opened_inode(resolver, root, parts)
        assert len(os.listdir("/dev/fd")) == handles


@pytest.mark.parametrize("mark", ["\x85", "\x9b", "\u2028", "\u2029", "\u202e", "\u2066"])
async def test_workspace_paths_with_control_or_reordering_characters_are_refused(
    tmp_path: Path, mark: str
) -> None:
    """With such a character, `txt.exe` looks like `exe.txt` to an approver."""
    workspace = Workspaces(tmp_path).for_tenant("acme")

    with pytest.raises(ToolFailure, match="control characters"):
        await workspace.write(f"report{mark}fdp.csv", b"")
