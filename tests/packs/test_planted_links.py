"""Nothing that stands in a workspace (links, pipes, sockets) leads a tool out of it."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packs.conftest import SECRET, TOOLS, TenantFiles


def link_to(target: str) -> Callable[[Path, Path], None]:
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
    with socket.socket(socket.AF_UNIX) as unix_socket:
        os.chdir(spot.parent)  # the address of a socket is at most 107 bytes long
        unix_socket.bind(spot.name)
        os.chdir(here)


def loop(spot: Path, folder: Path) -> None:
    spot.symlink_to(spot.name)


def chain(spot: Path, folder: Path) -> None:
    link_to("../globex")(spot.parent / "hop", folder)
    spot.symlink_to("hop")


def odd_bytes(spot: Path, folder: Path) -> None:
    spot.mkdir()
    with open(os.fsencode(spot) + b"/\xff\xfe.txt", "wb") as file:
        file.write(SECRET.encode())


PLANTED_LINKS: dict[str, Callable[[Path, Path], None]] = {
    "link to a file": link_to("{folder}/outside/secret.txt"),
    "link to a folder": link_to("{folder}/outside"),
    "relative link to a file": link_to("../globex/secret.txt"),
    "relative link to a folder": link_to("../globex"),
    "link to the root of all": link_to(".."),
    "link to /": link_to("/"),
    "link to itself": loop,
    "link to a link": chain,
    "dangling link": link_to("{folder}/outside/new.txt"),
    "link to what is kept": link_to("../.gatepost/globex/memory"),
    "link to /proc/self/root": link_to("/proc/self/root"),
    "link to /proc/self/cwd": link_to("/proc/self/cwd"),
    "link to /dev/zero": link_to("/dev/zero"),
    "link to /dev/stdin": link_to("/dev/stdin"),
    "hard link": hard,
    "pipe": pipe,
    "socket": listener,
    "name of odd bytes": odd_bytes,
}


@pytest.mark.requirement("P14")
@pytest.mark.parametrize("planted", PLANTED_LINKS)
@pytest.mark.parametrize("below", ["", "/secret.txt", "/globex/secret.txt", "/etc/passwd", "/new"])
async def test_no_planted_file_leads_out_of_the_workspace(
    tenant_files: TenantFiles, planted: str, below: str
) -> None:
    """Links, hard links, pipes, sockets and odd names, for each tool."""
    before = tenant_files.others()

    for tool in TOOLS:
        spot = tenant_files.cleared() / "spot"
        if tool.startswith("vault_"):
            spot = tenant_files.home / "vault" / ("spot" if below or "list" in tool else "spot.md")
            spot.parent.mkdir()
        PLANTED_LINKS[planted](spot, tenant_files.folder)
        failed, text = await tenant_files.call(tool, f"spot{below}")
        if "list" in tool and planted != "name of odd bytes":
            assert failed, (tool, text)
        if "read" in tool:
            assert failed, (tool, text)
        if "write" in tool and not failed:
            # What is written replaces the link, and does not go through it.
            assert not spot.is_symlink()

    assert tenant_files.others() == before
