"""Git works with real hosts: over HTTPS with sign-in, over SSH with keys checked on both sides."""

from typing import Any

import pytest

from tests.packs.conftest import PackCaller
from tests.packs.git.conftest import (
    INTERNAL_HOST,
    TOKEN,
    GitServers,
    git_output,
    git_refusal,
    git_result,
)

pytestmark = pytest.mark.requirement("X2", "X3")


@pytest.mark.parametrize(("protocol", "transport"), [("mcp", "web"), ("rest", "shell")])
def test_a_repository_is_cloned_changed_pushed_and_pulled(
    git_servers: GitServers, protocol: Any, transport: str
) -> None:
    """It works over https and SSH, at addresses that only the server knows."""
    agent = git_servers.agent(protocol)
    name = f"{transport}-{agent.tenant}.git"
    upstream = git_servers.offered(name, README__md=b"one\n")
    url = f"{git_servers.web.url}/{name}" if transport == "web" else git_servers.shell.url(name)
    if transport == "shell":
        git_servers.shell.allow(agent.call("ssh_public_key").value)

    git_output(agent, "clone", "--depth=1", url, "./mine")
    agent.call("fs_write_text", path="mine/README.md", text="two\n")
    git_output(agent, "-C", "mine", "commit", "-am", "Say two; it's 100% more & better")
    git_output(agent, "-C", "mine", "push", "origin", "main")
    assert upstream.text("README.md") == "two"

    upstream.commit({"README.md": b"two\n", "theirs.md": b"three\n"}, onto="main")
    git_output(agent, "-C", "mine", "fetch", "--prune")
    assert git_output(agent, "-C", "mine", "show", "origin/main:theirs.md") == "three\n"
    agent.call("fs_write_text", path="mine/ours.md", text="four\n")
    git_output(agent, "-C", "mine", "add", "-A")
    git_output(agent, "-C", "mine", "commit", "-m", "Say four")
    git_output(agent, "-C", "mine", "pull", "--rebase", "--autostash")
    git_output(agent, "-C", "mine", "push")
    assert upstream.text("ours.md") == "four"
    assert agent.call("fs_read_text", path="mine/theirs.md").value == "three\n"


def test_a_host_accepts_only_the_key_of_its_tenant(
    git_servers: GitServers, mcp_agent: PackCaller
) -> None:
    """Each tenant has its own key; a host that accepts one accepts no other."""
    git_servers.offered(f"locked-{mcp_agent.tenant}.git", a=b"1")

    answer = git_result(
        mcp_agent, "clone", git_servers.shell.url(f"locked-{mcp_agent.tenant}.git"), "x"
    )

    assert answer["returncode"] == 128
    assert "Permission denied (publickey)" in answer["stderr"]
    assert "hint: Add the key that ssh_public_key shows" in answer["stderr"]
    assert "x" not in mcp_agent.call("fs_list").value


def test_a_host_with_a_changed_key_is_refused(
    git_servers: GitServers, mcp_agent: PackCaller
) -> None:
    """An attacker in between has the host's name and address but not its key."""
    git_servers.impostor.allow(mcp_agent.call("ssh_public_key").value)

    answer = git_result(mcp_agent, "clone", git_servers.impostor.url("any.git"), "x")

    assert answer["returncode"] == 128
    assert "Host key verification failed" in answer["stderr"]
    assert "hint: The host's key is unknown or differs" in answer["stderr"]
    assert git_servers.impostor.commands == []


def test_a_host_without_a_known_key_is_refused(
    git_servers: GitServers, mcp_agent: PackCaller
) -> None:
    """No person is present who could accept the host's key."""
    answer = git_result(mcp_agent, "clone", git_servers.unlisted.url("any.git"), "x")

    assert answer["returncode"] == 128
    assert "Host key verification failed" in answer["stderr"]
    assert git_servers.unlisted.commands == []


def test_git_signs_in_with_the_secret_of_its_tenant(
    git_servers: GitServers, mcp_agent: PackCaller
) -> None:
    """A tenant without a secret, or with a wrong one, gets a hint instead of a prompt."""
    git_servers.offered("private/a.git", README__md=b"one\n")
    url = f"{git_servers.web.url}/private/a.git"
    without = git_result(mcp_agent, "clone", url, "a")
    git_servers.put_secrets(mcp_agent.tenant, GIT_TOKEN="not-the-password")
    wrong = git_result(mcp_agent, "clone", url, "a")
    git_servers.put_secrets(mcp_agent.tenant, GIT_TOKEN=TOKEN)
    git_output(mcp_agent, "clone", url, "a")
    mcp_agent.call("fs_write_text", path="a/README.md", text="two\n")
    git_output(mcp_agent, "-C", "a", "commit", "-am", "Two")
    git_output(mcp_agent, "-C", "a", "push")

    assert without["returncode"] == wrong["returncode"] == 128
    assert "hint: This host requires a sign-in" in without["stderr"]
    assert "hint: This host does not accept the tenant's secret" in wrong["stderr"]
    content = b"".join(path.read_bytes() for path in mcp_agent.folder.rglob("*") if path.is_file())
    home = git_servers.root / ".gatepost" / mcp_agent.tenant / "git"
    content += b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert TOKEN.encode() not in content
    assert sorted(path.name for path in home.iterdir()) == ["gitconfig", "turn"]


def test_a_secret_bound_to_another_host_is_not_used(
    git_servers: GitServers, mcp_agent: PackCaller
) -> None:
    """The binding of the secret wins over the configured host."""
    git_servers.offered("private/b.git", README__md=b"one\n")
    url = f"{git_servers.web.url}/private/b.git"
    git_servers.put_secrets(mcp_agent.tenant, "gitlab.com", GIT_TOKEN=TOKEN)
    seen = len(git_servers.web.asked)
    message = git_refusal(mcp_agent, "clone", url, "b")
    count = len(git_servers.web.asked) - seen
    git_servers.put_secrets(mcp_agent.tenant, git_servers.web.place, GIT_TOKEN=TOKEN)
    git_output(mcp_agent, "clone", url, "b")

    assert f"is bound to gitlab.com and is not sent to {git_servers.web.place}" in message
    assert count == 0


def test_private_addresses_are_not_reached(git_servers: GitServers, agent: PackCaller) -> None:
    """Neither a name, a number, a URL nor a remote leads to one."""
    seen = len(git_servers.web.asked)
    git_output(agent, "init")
    for url in (
        f"https://{INTERNAL_HOST}/x.git",
        f"git@{INTERNAL_HOST}:x.git",
        "https://127.0.0.1/x.git",
    ):
        git_output(agent, "remote", "add", "inside", url)
        for args in (["clone", url, "x"], ["fetch", url], ["fetch", "inside"], ["fetch"]):
            assert "not on the internet" in git_refusal(agent, *args)
        git_output(agent, "remote", "remove", "inside")

    assert len(git_servers.web.asked) == seen


def test_redirects_are_not_followed(git_servers: GitServers, mcp_agent: PackCaller) -> None:
    """A redirect would lead to an address that Gatepost has not checked."""
    git_servers.web.moved_to = "https://127.0.0.1:9"

    answer = git_result(mcp_agent, "clone", f"{git_servers.web.url}/moved/x.git", "x")

    assert answer["returncode"] == 128
    assert "hint: Redirects are not followed" in answer["stderr"]
