"""The tool `git_result` as its page describes it, by both protocols."""

import contextlib
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.packs.conftest import PackCaller, by_rest
from tests.packs.git.conftest import GitServers, git_output, git_refusal, git_result
from tests.support.client import modern_request, request
from tests.support.measuring import eventually

pytestmark = pytest.mark.requirement("X2")


def test_all_local_git_commands_work_in_a_new_repository(agent: PackCaller) -> None:
    """Everything that needs no other host, as on a terminal."""
    assert "Initialized empty Git repository in /workspace/.git/" in git_output(agent, "init")
    agent.call("fs_write_text", path="a.txt", text="one\n")
    assert (
        git_output(agent, "status", "--short", "--branch")
        == "## No commits yet on main\n?? a.txt\n"
    )
    git_output(agent, "add", "-A")
    git_output(agent, "config", "user.name", "Ada O'Co")
    assert git_output(agent, "config", "user.name") == "Ada O'Co\n"
    git_output(agent, "commit", "-m", "Say one; and more")
    agent.call("fs_write_text", path="a.txt", text="two\n")
    assert "-one\n+two\n" in git_output(agent, "diff")
    git_output(agent, "checkout", "-b", "other")
    git_output(agent, "commit", "-am", "Say two")
    assert git_output(agent, "log", "--oneline", "--format=%an %s", "--max-count=5") == (
        "Ada O'Co Say two\nAda O'Co Say one; and more\n"
    )
    assert "Say two" in git_output(agent, "show", "--stat", "/workspace/a.txt")
    git_output(agent, "reset", "--hard", "main")
    assert agent.call("fs_read_text", path="a.txt").value == "one\n"
    assert git_output(agent, "branch", "--list", "--all") == "  main\n* other\n"
    git_output(agent, "remote", "add", "origin", "https://git.company.test/x.git")
    assert "https://git.company.test/x.git (fetch)" in git_output(agent, "remote", "-v")


def test_an_error_of_git_is_returned_with_its_code_and_text(agent: PackCaller) -> None:
    """It is no failure of the tool."""
    git_output(agent, "init")

    answer = git_result(agent, "checkout", "nowhere")

    assert answer == {
        "returncode": 1,
        "stdout": "",
        "stderr": "error: pathspec 'nowhere' did not match any file(s) known to git\n",
    }


FAILING_CALLS: list[tuple[dict[str, Any], str, str]] = [
    (
        {"args": ["rm", "-rf", "."]},
        "validation",
        "'rm' is not an allowed git command. Allowed are: clone, pull",
    ),
    ({"args": []}, "validation", "Name a git command"),
    ({"args": ["add", "a;b"]}, "validation", "invalid characters: ;"),
    ({"args": ["add", "$(id)"]}, "validation", "invalid characters"),
    ({"args": ["add", "../x"]}, "validation", "leads out of the workspace"),
    ({"args": ["status", *"abcdef"]}, "validation", "Too many arguments for git status: 6"),
    ({"args": ["clone", "--upload-pack=id", "https://h/x"]}, "validation", "is not an allowed opt"),
    ({"args": ["status"], "timeout_s": 0}, "validation", "timeout_s"),
    ({"args": ["status"], "timeout_s": 301}, "validation", "timeout_s"),
    (
        {"args": ["status"]},
        "not_found",
        'no git repository in /workspace. Create one with ["init"]',
    ),
    ({"args": ["-C", "no", "status"]}, "not_found", "no folder /workspace/no"),
    ({"args": ["clone", "https://nowhere.company.test/x"]}, "upstream_unavailable", "no address"),
    ({"args": ["clone", "http://git.company.test/x"]}, "denied", "unencrypted"),
]


@pytest.mark.parametrize("case", FAILING_CALLS, ids=lambda case: json.dumps(case[0])[:70])
@by_rest
def test_a_failure_explains_the_problem_to_the_model(
    agent: PackCaller, case: tuple[dict[str, Any], str, str]
) -> None:
    """Over both protocols, the check comes before any program starts."""
    arguments, kind, says = case

    reply = agent.call("git", **arguments)

    assert reply.failure is not None
    assert says in reply.failure
    assert reply.kind in (None, kind)


def test_a_folder_without_a_repository_says_where_there_is_one(mcp_agent: PackCaller) -> None:
    """A model that has cloned into a folder learns how to work in it."""
    git_output(mcp_agent, "init", "mine")

    assert 'begin with its folder: ["-C", "mine", "status"]' in git_refusal(mcp_agent, "status")
    assert git_output(mcp_agent, "-C", "mine", "status", "-sb") == "## No commits yet on main\n"


def test_a_command_that_takes_too_long_is_stopped(
    git_servers: GitServers, agent: PackCaller
) -> None:
    """Its child processes end, too; the message names the setting of the limit."""
    reply = agent.call("git", args=["clone", f"{git_servers.web.url}/hang/x.git"], timeout_s=1)

    assert reply.failure is not None
    assert "did not finish within 1 seconds (timeout_s)" in reply.failure
    assert reply.kind in (None, "timeout")
    assert programs_in(git_servers, agent.tenant) == []
    assert agent.call("fs_list").value == []


def test_a_cancelled_call_ends_its_programs(git_servers: GitServers, mcp_agent: PackCaller) -> None:
    """After a disconnect its programs end, and the next command runs."""
    git_servers.web.hanging.clear()
    call = {"name": "git", "arguments": {"args": ["clone", f"{git_servers.web.url}/hang/x.git"]}}
    fields, body = modern_request("tools/call", call)
    client = mcp_agent.gatepost.client
    head = [("Host", client.authority), ("Authorization", f"Bearer {mcp_agent.token}"), *fields]
    head += [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    with socket.create_connection(("127.0.0.1", client.port), timeout=60) as connection:
        connection.sendall(request("POST", client.path, head, body))
        assert git_servers.web.hanging.wait(60)
        assert programs_in(git_servers, mcp_agent.tenant)

    eventually(lambda: not programs_in(git_servers, mcp_agent.tenant), within=10)
    git_output(mcp_agent, "init", "next")
    assert mcp_agent.call("fs_list").value == ["next"]


def programs_in(git_servers: GitServers, tenant: str) -> list[str]:
    """Return the programs that work in a tenant's folders."""
    pid = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may end while it is looked at
            folder, command = os.readlink(process / "cwd"), (process / "cmdline").read_text()
            if folder.startswith(
                (f"{git_servers.root}/{tenant}", f"{git_servers.root}/.gatepost/{tenant}")
            ):
                pid.append(command)
    return pid


def test_long_output_is_cut_and_says_so(mcp_agent: PackCaller) -> None:
    """The cut comes at the end of a character."""
    git_output(mcp_agent, "init")
    mcp_agent.call("fs_write_text", path="a.txt", text="ü\n" * 20_000)
    git_output(mcp_agent, "add", "-A")

    answer = git_result(mcp_agent, "diff", "--cached")

    assert len(answer["stdout"].encode()) < 21_000
    assert "\n[Cut: these are the first 20000 bytes. Ask for less: --max-count" in answer["stdout"]


def test_tenants_with_the_same_repository_names_are_isolated(git_servers: GitServers) -> None:
    """They share no repositories, no `--global` settings and no keys."""
    first, other = git_servers.agent("mcp"), git_servers.agent("rest")
    for agent in (first, other):
        git_output(agent, "init", "same")
        git_output(agent, "config", "--global", "user.name", agent.tenant)
        agent.call("fs_write_text", path="same/a.txt", text=agent.tenant)
        git_output(agent, "-C", "same", "add", "-A")
        git_output(agent, "-C", "same", "commit", "-m", "mine")

    for agent in (first, other):
        assert git_output(agent, "-C", "same", "log", "--format=%an") == f"{agent.tenant}\n"
        assert agent.tenant in git_output(agent, "-C", "same", "show", "HEAD:a.txt")
    assert first.call("ssh_public_key").value != other.call("ssh_public_key").value


def test_progress_is_reported_and_left_out_of_the_answer(
    git_servers: GitServers, mcp_agent: PackCaller
) -> None:
    """The reports have Git's own texts and growing numbers."""
    git_servers.offered("progress.git").commit({f"{at}.txt": os.urandom(2000) for at in range(12)})
    call = {
        "name": "git",
        "arguments": {"args": ["clone", f"{git_servers.web.url}/progress.git", "x"]},
    }
    fields, body = modern_request("tools/call", call, progress=7)
    answer = mcp_agent.gatepost.client.send("POST", None, fields, body, token=mcp_agent.token)
    messages = [
        json.loads(line.removeprefix(b"data: "))
        for line in answer.body.splitlines()
        if line.startswith(b"data: {")
    ]
    reports = [
        message["params"]
        for message in messages
        if message.get("method") == "notifications/progress"
    ]
    result = messages[-1]["result"]["structuredContent"]

    assert result["returncode"] == 0
    assert result["stderr"].startswith("Cloning into 'x'...\n")
    assert "%" not in result["stderr"]
    assert reports
    assert [report["progress"] for report in reports] == sorted(
        {report["progress"] for report in reports}
    )
    assert "objects" in reports[-1]["message"]
