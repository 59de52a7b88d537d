"""Each tenant has one SSH key, made once, and no tool shows its private half."""

import asyncio
import base64
import os
from pathlib import Path

import pytest

from gatepost.workspace import Workspaces
from gatepost_packs.ssh.tools import key_of
from tests.packs.conftest import PackCaller
from tests.packs.git.conftest import GitServers, git_output, git_result

pytestmark = pytest.mark.requirement("X3")


def private_key(git_servers: GitServers, agent: PackCaller) -> Path:
    return git_servers.root / ".gatepost" / agent.tenant / "ssh" / "id_ed25519"


def test_the_public_key_is_one_line_and_stays_the_same(
    git_servers: GitServers, agent: PackCaller
) -> None:
    """A hosting account takes its form; only the server's user can read the private half."""
    first = agent.call("ssh_public_key")
    again = agent.call("ssh_public_key")
    kind, data, comment = first.value.split(" ")

    assert first.value == again.value
    assert (kind, comment) == ("ssh-ed25519", "workspace@gatepost")
    assert base64.b64decode(data).startswith(b"\0\0\0\x0bssh-ed25519\0\0\0\x20")
    assert private_key(git_servers, agent).stat().st_mode & 0o777 == 0o600


def test_no_tool_reads_the_private_key(git_servers: GitServers, mcp_agent: PackCaller) -> None:
    """Neither a path of a file tool nor an argument of git reaches it."""
    mcp_agent.call("ssh_public_key")
    key_path = private_key(git_servers, mcp_agent)
    secret = key_path.read_text().split("\n")[2]
    git_output(mcp_agent, "init")
    paths = (
        *("/workspace/.ssh/id_ed25519", ".ssh/id_ed25519", "../.gatepost/x/ssh/id_ed25519"),
        *(str(key_path), f"../.gatepost/{mcp_agent.tenant}/ssh/id_ed25519"),
    )
    for path in paths:
        for tool in ("fs_read_text", "workspace_read"):
            assert mcp_agent.call(tool, path=path).failure is not None
        for args in (["diff", "--no-index", path], ["add", path], ["show", f"HEAD:{path}"]):
            reply = mcp_agent.call("git", args=args)
            assert secret not in (reply.failure or reply.text)
    listed = mcp_agent.call("workspace_list", recursive=True).text

    assert "ed25519" not in listed


async def test_replicas_that_ask_at_once_make_one_key(tmp_path: Path) -> None:
    """Each has its own handles on the shared files."""
    replicas = [Workspaces(tmp_path) for _ in range(4)]
    try:
        keys = await asyncio.gather(*(key_of(replica.for_tenant("acme")) for replica in replicas))
        other = await key_of(replicas[0].for_tenant("globex"))
    finally:
        for replica in replicas:
            replica.close()

    assert len({key.public for key in keys}) == 1
    assert other.public != keys[0].public
    assert keys[0].path == str(tmp_path / ".gatepost/acme/ssh/id_ed25519")


def test_the_temporary_files_of_an_ssh_call_are_removed(
    git_servers: GitServers, mcp_agent: PackCaller
) -> None:
    """None of them is in the workspace."""
    git_result(mcp_agent, "clone", git_servers.shell.url("none.git"))
    home = git_servers.root / ".gatepost" / mcp_agent.tenant / "git"
    (home / "run-of-a-server-that-was-killed").mkdir()
    os.utime(home / "run-of-a-server-that-was-killed", (1, 1))
    git_result(mcp_agent, "clone", git_servers.shell.url("none.git"))

    assert sorted(path.name for path in home.iterdir()) == ["gitconfig", "turn"]
    assert mcp_agent.call("fs_list").value == []
