"""A script runs only as approved: that content, name and tenant, at every replica."""

import re
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from click import ClickException

from gatepost.cli.configuration import DEFAULT_FILE
from gatepost.cli.scripts import show
from gatepost.policy.script_reviews.script import Script, ScriptReview
from gatepost_packs.scripts.folders import is_allowed
from tests.packs.conftest import PackCaller, scopes_of
from tests.packs.scripts.test_rejected import PACKS, WEATHER, ScriptServer, agent, script_server
from tests.support.commands import completed, running

__all__ = ["agent", "script_server"]  # fixtures

pytestmark = pytest.mark.requirement("P11")

FIRST_SCRIPT, OTHER_SCRIPT = "def main():\n  return 'one'\n", "def main():\n  return 'other'\n"


def answer(agent: PackCaller, name: str = "mine") -> Any:
    """Return the script's value, or `pending` if the call waits for approval."""
    reply = agent.call("script_run", name=name)
    if reply.failure is not None:
        assert f"Script '{name}.star' is pending approval." in reply.failure
        return "pending"
    return reply.value["value"]


def test_a_change_makes_a_script_unapproved(script_server: ScriptServer, agent: PackCaller) -> None:
    """One changed byte is enough; a new approval replaces that of the old content."""
    script_server.put("mine", FIRST_SCRIPT, agent.tenant)
    before = answer(agent)
    script_server.approve(agent.tenant, "mine", FIRST_SCRIPT)
    approved = answer(agent)
    script_server.put("mine", FIRST_SCRIPT + "\n", agent.tenant)
    touched = answer(agent)
    script_server.put("mine", OTHER_SCRIPT, agent.tenant)
    script_server.approve(agent.tenant, "mine", OTHER_SCRIPT)
    changed = answer(agent)
    script_server.put("mine", FIRST_SCRIPT, agent.tenant)
    brought_back = answer(agent)

    assert [before, approved, touched, changed, brought_back] == [
        "pending",
        "one",
        "pending",
        "other",
        "pending",
    ]


def test_a_revoked_script_does_not_run(script_server: ScriptServer, agent: PackCaller) -> None:
    """The next call is refused."""
    script_server.put("mine", FIRST_SCRIPT, agent.tenant)
    script_server.approve(agent.tenant, "mine", FIRST_SCRIPT)
    before = answer(agent)
    script_server.revoke(agent.tenant, "mine")

    assert (before, answer(agent)) == ("one", "pending")


def test_an_approval_binds_the_name(script_server: ScriptServer, agent: PackCaller) -> None:
    """The same content under another name needs its own approval."""
    script_server.put("mine", FIRST_SCRIPT, agent.tenant)
    script_server.put("yours", FIRST_SCRIPT, agent.tenant)
    script_server.approve(agent.tenant, "mine", FIRST_SCRIPT)

    assert (answer(agent, "mine"), answer(agent, "yours")) == ("one", "pending")


def test_tenants_with_the_same_script_names_are_isolated(script_server: ScriptServer) -> None:
    """They share no files, no approvals and no waiting scripts."""
    first, other = script_server.agent("mcp"), script_server.agent("rest")
    for caller, text in ((first, FIRST_SCRIPT), (other, OTHER_SCRIPT)):
        script_server.put("mine", text, caller.tenant)
    script_server.approve(first.tenant, "mine", FIRST_SCRIPT)
    script_server.approve_code(first.tenant, "40 + 2")
    names = [script["name"] for script in other.call("script_list").value["scripts"]]

    assert (answer(first), answer(other)) == ("one", "pending")
    assert first.call("script_exec", code="40 + 2").value["value"] == 42
    assert "pending" in str(other.call("script_exec", code="40 + 2").failure)
    assert names.count("mine") == 1
    assert script_server.waiting(first.tenant) == []
    script_server.approve(other.tenant, "mine", OTHER_SCRIPT)
    assert answer(other) == "other"


def test_an_allowed_name_means_the_operators_script_and_not_the_tenants(
    script_server: ScriptServer, agent: PackCaller
) -> None:
    """A tenant's script of the same name is not allowed, even if the operator's is gone."""
    theirs = "def main():\n  return 'theirs'\n"
    agent.call("fs_write_text", path="scripts/weather.star", text=theirs)
    shadowed = agent.call("script_run", name="weather").value["value"]
    hidden = script_server.folder / "operator/weather.star"
    hidden.unlink()
    try:
        gone = answer(agent, "weather")
    finally:
        hidden.write_text(WEATHER, encoding="utf-8")

    assert (shadowed, gone) == ([], "pending")


def test_exactly_the_code_that_was_approved_is_executed(
    script_server: ScriptServer, agent: PackCaller
) -> None:
    """Other code waits; the refusal has the name that an administrator approves."""
    first = agent.call("script_exec", code="1 + 1")
    (name,) = re.findall(r"Script '(exec-[0-9a-f]{16})\.star'", str(first.failure))
    script_server.approve_code(agent.tenant, "1 + 1")

    assert script_server.waiting(agent.tenant) == []
    assert agent.call("script_exec", code="1 + 1").value["value"] == 2
    assert "pending" in str(agent.call("script_exec", code="1 + 1 ").failure)
    assert agent.call("script_run", name=name).failure == f"Error: script '{name}' not found"


def test_one_callers_waiting_scripts_do_not_displace_anothers(
    script_server: ScriptServer, agent: PackCaller
) -> None:
    """The caller with the most waiting scripts loses one, so the other caller's script stays."""
    quiet = script_server.agent(agent.protocol, agent.tenant)
    scopes = " ".join(scopes_of(PACKS))
    quiet.token = script_server.token(org_id=agent.tenant, sub="quiet", scope=scopes)
    quiet.call("script_exec", code="'quiet'")
    for number in range(5):
        agent.call("script_exec", code=f"{number}")
    waiting = script_server.at_approvals(agent.tenant, lambda approvals: approvals.waiting())

    assert [request.content for request in waiting] == ["'quiet'", "3", "4"]


def test_the_number_of_waiting_scripts_is_bounded(
    script_server: ScriptServer, agent: PackCaller
) -> None:
    """The newest scripts wait with their content; of each file, only the newest version waits."""
    for number in range(5):
        agent.call("script_exec", code=f"{number}")
    for text in (FIRST_SCRIPT, OTHER_SCRIPT):
        script_server.put("mine", text, agent.tenant)
        agent.call("script_run", name="mine")
        agent.call("script_run", name="mine")
    waiting = script_server.at_approvals(agent.tenant, lambda approvals: approvals.waiting())

    assert [request.content for request in waiting] == ["3", "4", OTHER_SCRIPT]
    issuer = agent.gatepost.idp.issuer("main")
    callers = {
        (request.caller.subject, request.caller.issuer, request.caller.kind) for request in waiting
    }
    assert callers == {("alice", issuer, "user")}


def test_a_script_swapped_after_the_check_does_not_run(
    script_server: ScriptServer, agent: PackCaller
) -> None:
    """A thread swaps the file as fast as possible, and only the approved content ever runs."""
    path = script_server.put("mine", FIRST_SCRIPT, agent.tenant)
    script_server.approve(agent.tenant, "mine", FIRST_SCRIPT)
    over = threading.Event()

    def swap() -> None:
        spare = path.with_name("spare")
        while not over.is_set():
            for text in (OTHER_SCRIPT, FIRST_SCRIPT):
                spare.write_text(text, encoding="utf-8")
                spare.replace(path)

    swapping = threading.Thread(target=swap, daemon=True)
    swapping.start()
    try:
        answers = {answer(agent) for _ in range(15)}
    finally:
        over.set()
        swapping.join(10)

    assert answers <= {"one", "pending"}


def test_a_decision_counts_at_every_replica_at_once(script_server: ScriptServer) -> None:
    """Another server on the same database and files uses the decision at once."""
    with running("serve", "--config", "gatepost.toml", cwd=script_server.folder):
        here, remote = (
            script_server.agent("mcp", "shared"),
            script_server.agent_of_other_process("mcp", "shared"),
        )
        script_server.put("mine", FIRST_SCRIPT, "shared")
        before = [answer(here), answer(remote)]
        script_server.approve("shared", "mine", FIRST_SCRIPT)
        approved = [answer(remote), answer(here)]
        first_reload = here.call("script_reload").value["new"]
        second_reload = remote.call("script_reload").value["new"]
        script_server.revoke("shared", "mine")
        revoked = [answer(here), answer(remote)]

    assert before == revoked == ["pending", "pending"]
    assert approved == ["one", "one"]
    assert "mine" in first_reload
    assert second_reload == []


def test_a_script_is_allowed_by_its_hash_in_any_place(script_server: ScriptServer) -> None:
    """The hash is that of `sha256sum`; a script with another byte or another name waits."""
    settings = script_server.config.packs.scripts
    bound = f"mine@sha256:{_sha256(FIRST_SCRIPT)}"
    allows = type(settings)(allow=[bound])

    assert is_allowed(Script("mine", FIRST_SCRIPT.encode(), "workspace"), allows)
    assert is_allowed(Script("mine", FIRST_SCRIPT.encode(), "server"), allows)
    assert not is_allowed(Script("mine", OTHER_SCRIPT.encode(), "workspace"), allows)
    assert not is_allowed(Script("yours", FIRST_SCRIPT.encode(), "workspace"), allows)
    assert not is_allowed(Script("mine", FIRST_SCRIPT.encode(), "code"), allows)


def _sha256(text: str) -> str:
    done = subprocess.run(["sha256sum"], input=text.encode(), capture_output=True, check=True)
    return done.stdout.split()[0].decode()


@pytest.fixture
def run_scripts_command(script_server: ScriptServer) -> Any:
    """Return a function that runs `gatepost scripts …` as a process."""

    def ask(*arguments: str) -> tuple[int, str, str]:
        return completed("scripts", *arguments, cwd=script_server.folder)

    return ask


def test_an_administrator_approves_only_the_content_that_was_shown(
    script_server: ScriptServer, run_scripts_command: Any
) -> None:
    """The digest names it, while the server runs; changed content is not approved."""
    agent = script_server.agent("mcp")
    who = ("--tenant", agent.tenant)
    script_server.put("mine", "# \x1b[2J\u202ehidden\n" + FIRST_SCRIPT, agent.tenant)
    before = answer(agent)
    code, output, _ = run_scripts_command("approve", "mine", *who)
    (digest,) = re.findall(r"--digest ([0-9a-f]{64})", output)
    still = answer(agent)
    script_server.put("mine", OTHER_SCRIPT, agent.tenant)
    agent.call("script_run", name="mine")
    stale, _, says = run_scripts_command("approve", "mine", "--digest", digest, *who)
    unchanged = answer(agent)
    script_server.put("mine", FIRST_SCRIPT, agent.tenant)
    _, shown_again, _ = run_scripts_command("approve", "mine", *who)
    (digest,) = re.findall(r"--digest ([0-9a-f]{64})", shown_again)
    approved, _, _ = run_scripts_command("approve", "mine.star", "--digest", digest, *who)

    assert (code, stale, approved) == (0, 1, 0)
    assert "\\x1b[2J\\u202ehidden" in output
    assert "\x1b" not in output
    assert "return 'one'" in output
    assert "Nothing was approved" in says
    assert (before, still, unchanged, answer(agent)) == ("pending", "pending", "pending", "one")


def test_an_administrator_lists_approved_waiting_and_allowed_scripts(
    script_server: ScriptServer, run_scripts_command: Any
) -> None:
    """A revocation counts at once."""
    agent = script_server.agent("mcp")
    who = ("--tenant", agent.tenant)
    script_server.put("mine", FIRST_SCRIPT, agent.tenant)
    script_server.approve(agent.tenant, "mine", FIRST_SCRIPT)
    script_server.put("mine", OTHER_SCRIPT, agent.tenant)
    script_server.put("quiet", FIRST_SCRIPT, agent.tenant)
    answer(agent)
    agent.call("script_exec", code="1")
    _, listed, _ = run_scripts_command("list", *who)
    states = sorted(tuple(line.split()[:2]) for line in listed.splitlines()[1:])
    gone, _, _ = run_scripts_command("revoke", "mine", *who)

    assert [
        state for state in states if state[0] in ("mine", "quiet", "weather", "new_feature")
    ] == [
        ("mine", "approved"),
        ("mine", "waits"),
        ("new_feature", "not"),
        ("quiet", "not"),
        ("weather", "allowed"),
    ]
    assert [state for name, state in states if name.startswith("exec-")] == ["waits"]
    assert gone == 0
    assert script_server.waiting(agent.tenant)[0].startswith("exec-")


def test_the_command_reports_an_unknown_tenant(run_scripts_command: Any) -> None:
    """The exit code is 1, and an impossible tenant is not listed as an empty one."""
    code, _, says = run_scripts_command("list", "--tenant", "../acme")

    assert code == 1
    assert says.endswith("Error: The configuration has no tenant ../acme.")


def test_a_diff_to_the_approved_script_is_shown_with_escapes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Characters that a terminal would act on are escaped."""
    before = ScriptReview(name="mine", digest="", content=FIRST_SCRIPT, place="code", at=0)

    script = Script("mine", (OTHER_SCRIPT + "# \x9b31m\r\u2067").encode(), "workspace")

    show(script, before, "acme", Path("a b.toml"))

    output = capsys.readouterr().out
    assert "-  return 'one'\n-\n+  return 'other'\n+# \\x9b31m\\r\\u2067\n" in output
    assert "gatepost scripts approve --tenant acme mine --config 'a b.toml' --digest " in output


def test_unreadable_bytes_are_not_shown_for_approval() -> None:
    """A file that is not text is not a script."""
    with pytest.raises(ClickException, match=r"binary\.star is not UTF-8 text"):
        show(Script("binary", b"\xff", "workspace"), None, "acme", DEFAULT_FILE)


def test_a_reload_keeps_the_limit_of_waiting_scripts(
    script_server: ScriptServer, agent: PackCaller
) -> None:
    """A caller may write any number of scripts; those that wait already stay unchanged."""
    for number in range(6):
        script_server.put(f"mine-{number}", FIRST_SCRIPT, agent.tenant)

    reloads = [agent.call("script_reload").value["unapproved"] for _ in range(2)]

    assert reloads[0] == reloads[1] == [*(f"mine-{n}" for n in range(6)), "new_feature"]
    assert len(script_server.waiting(agent.tenant)) == 3
