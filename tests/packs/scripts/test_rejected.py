"""A rejected script is refused with the reason, and no administrator is asked about it again."""

import re

import pytest

from gatepost.policy.approvals.approval_request import reason_sentence
from tests.packs.conftest import PackCaller, PackResult
from tests.packs.scripts.conftest import ScriptServer
from tests.support.commands import ended, running

pytestmark = pytest.mark.requirement("P11")

ONE, OTHER = "def main():\n  return 'one'\n", "def main():\n  return 'other'\n"
REFUSED = (
    r"Error: Script '{}\.star' was rejected by \S+, so it was not run\. Their reason: {} "
    r"Do not call it again as it is: change it, or ask your user\."
)


def run(agent: PackCaller, name: str = "mine") -> PackResult:
    return agent.call("script_run", name=name)


def gatepost(script_server: ScriptServer, *words: str) -> str:
    """Run a command of the administrator in a process of its own, and return its output."""
    code, says, complaints = ended(*words, cwd=script_server.folder)
    assert code == 0, complaints
    return says


def reject(script_server: ScriptServer, tenant: str, name: str, reason: str) -> str:
    """Reject what waits by that name, at the command line; its id."""
    found = [
        line.split() for line in gatepost(script_server, *LIST, "--tenant", tenant).splitlines()
    ]
    [which] = [words[0] for words in found if words[2] == f"{name}.star"]
    gatepost(script_server, "approvals", "reject", "--tenant", tenant, which, "--reason", reason)
    return which


LIST = ("approvals", "list")


def test_the_agent_is_told_who_rejected_it_and_why(
    script_server: ScriptServer, agent: PackCaller
) -> None:
    """Each call of that content is refused over both protocols; no administrator is asked again."""
    script_server.put("mine", ONE, agent.tenant)
    run(agent)
    reject(script_server, agent.tenant, "mine", "Not tested")
    again = [run(agent), run(agent)]
    reloaded = agent.call("script_reload").value

    for reply in again:
        assert re.fullmatch(REFUSED.format("mine", r"Not tested\."), str(reply.failure))
        assert reply.kind == ("denied" if agent.protocol == "rest" else None)
    assert "mine" in reloaded["unapproved"]
    assert "mine" not in script_server.waiting(agent.tenant)


def test_a_change_asks_again(script_server: ScriptServer, agent: PackCaller) -> None:
    """The rejected content comes back to a rejection, whatever was approved meanwhile."""
    script_server.put("mine", ONE, agent.tenant)
    run(agent)
    reject(script_server, agent.tenant, "mine", "No!")
    script_server.put("mine", OTHER, agent.tenant)
    changed = run(agent)
    script_server.approve(agent.tenant, "mine", OTHER)
    approved = run(agent)
    script_server.put("mine", ONE, agent.tenant)

    assert "pending approval" in str(changed.failure)
    assert approved.value["value"] == "other"
    assert re.fullmatch(REFUSED.format("mine", "No!"), str(run(agent).failure))
    assert script_server.waiting(agent.tenant) == []


def test_code_without_a_file_is_rejected_likewise(
    script_server: ScriptServer, agent: PackCaller
) -> None:
    """A rejection without a reason shows none; any other code waits."""
    first = agent.call("script_exec", code="6 * 7")
    (name,) = re.findall(r"exec-[0-9a-f]{16}", str(first.failure))
    reject(script_server, agent.tenant, name, "")
    reply = agent.call("script_exec", code="6 * 7")

    assert "so it was not run. Do not call it again" in str(reply.failure)
    assert "pending" in str(agent.call("script_exec", code="6 * 7 ").failure)


def test_an_administrator_approves_it_after_all(script_server: ScriptServer) -> None:
    """By either command, which say that it was rejected; a script without a file as well."""
    agent = script_server.agent("mcp")
    who = ("--tenant", agent.tenant)
    script_server.put("mine", ONE, agent.tenant)
    run(agent)
    which = reject(script_server, agent.tenant, "mine", "Not \x1b[2Jtested.")
    code = agent.call("script_exec", code="6 * 7")
    (name,) = re.findall(r"exec-[0-9a-f]{16}", str(code.failure))
    reject(script_server, agent.tenant, name, "")
    listed = gatepost(script_server, "scripts", "list", *who)
    past = gatepost(script_server, *LIST, "--past", *who)
    shown = gatepost(script_server, "approvals", "show", *who, which)
    seen = gatepost(script_server, "scripts", "approve", name, *who)
    (digest,) = re.findall(r"--digest ([0-9a-f]{64})", seen)
    gatepost(script_server, "scripts", "approve", name, "--digest", digest, *who)
    (digest,) = re.findall(r"approve .* --digest (\w+)", shown)
    gatepost(script_server, "approvals", "approve", *who, which, "--digest", digest)

    rows = [line.split()[:2] for line in listed.splitlines()]
    assert ["mine", "rejected"] in rows
    assert [name, "rejected"] in rows
    assert which in past
    assert "Not \\x1b[2Jtested." in shown
    assert "rejected this content." in seen
    assert run(agent).value["value"] == "one"
    assert agent.call("script_exec", code="6 * 7").value["value"] == 42


def test_a_rejection_counts_at_every_replica(script_server: ScriptServer) -> None:
    """From the next call on, wherever it arrives."""
    with running("serve", "--config", "gatepost.toml", cwd=script_server.folder):
        here, there = (
            script_server.agent("mcp", "far"),
            script_server.elsewhere("mcp", "far"),
        )
        script_server.put("mine", ONE, "far")
        before = [run(here).failure, run(there).failure]
        reject(script_server, "far", "mine", "No.")
        after = [run(there).failure, run(here).failure]

    assert all("pending approval" in str(one) for one in before)
    assert all(re.fullmatch(REFUSED.format("mine", r"No\."), str(one)) for one in after)


SAID = {
    "": "",
    "No": " Their reason: No.",
    "No!": " Their reason: No!",
    "Why?": " Their reason: Why?",
}


@pytest.mark.parametrize(("said", "told"), SAID.items())
def test_a_reason_is_told_as_a_sentence(said: str, told: str) -> None:
    """Scripts and calls have the same sentence; without a reason there is none."""
    assert reason_sentence(said) == told
