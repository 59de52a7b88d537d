"""What an administrator rejected is refused with the reason, and nobody is asked about it again."""

import re

import pytest

from gatepost.packs.scripts.approvals import reason_of
from tests.packs.office import Heard, Worker
from tests.packs.scripts.shop import Shop
from tests.support.gatepost import ended, running

pytestmark = pytest.mark.requirement("P11")

ONE, OTHER = "def main():\n  return 'one'\n", "def main():\n  return 'other'\n"
REFUSED = (
    r"Error: Script '{}\.star' was rejected by \S+, so it was not run\. Their reason: {} "
    r"Do not call it again as it is: change it, or ask your user\."
)


def run(worker: Worker, name: str = "mine") -> Heard:
    return worker.call("script_run", name=name)


def gatepost(shop: Shop, *words: str) -> str:
    """What a command of the administrator's says, in a process of its own."""
    code, says, complaints = ended(*words, cwd=shop.folder)
    assert code == 0, complaints
    return says


def reject(shop: Shop, tenant: str, name: str, reason: str) -> str:
    """Reject what waits by that name, at the command line; its id."""
    found = [line.split() for line in gatepost(shop, *LIST, "--tenant", tenant).splitlines()]
    [which] = [words[0] for words in found if words[2] == f"{name}.star"]
    gatepost(shop, "approvals", "reject", "--tenant", tenant, which, "--reason", reason)
    return which


LIST = ("approvals", "list")


def test_the_agent_is_told_who_rejected_it_and_why(shop: Shop, worker: Worker) -> None:
    """Each time it calls exactly that, by either protocol, and nobody is asked again."""
    shop.put("mine", ONE, worker.tenant)
    run(worker)
    reject(shop, worker.tenant, "mine", "Not tested")
    again = [run(worker), run(worker)]
    reloaded = worker.call("script_reload").value

    for heard in again:
        assert re.fullmatch(REFUSED.format("mine", r"Not tested\."), str(heard.failure))
        assert heard.kind == ("denied" if worker.protocol == "rest" else None)
    assert "mine" in reloaded["unapproved"]
    assert "mine" not in shop.waiting(worker.tenant)


def test_a_change_asks_again(shop: Shop, worker: Worker) -> None:
    """The rejected content comes back to a rejection, whatever was approved meanwhile."""
    shop.put("mine", ONE, worker.tenant)
    run(worker)
    reject(shop, worker.tenant, "mine", "No!")
    shop.put("mine", OTHER, worker.tenant)
    changed = run(worker)
    shop.approve(worker.tenant, "mine", OTHER)
    approved = run(worker)
    shop.put("mine", ONE, worker.tenant)

    assert "pending approval" in str(changed.failure)
    assert approved.value["value"] == "other"
    assert re.fullmatch(REFUSED.format("mine", "No!"), str(run(worker).failure))
    assert shop.waiting(worker.tenant) == []


def test_code_without_a_file_is_rejected_likewise(shop: Shop, worker: Worker) -> None:
    """Without a reason there is none; any other code waits."""
    first = worker.call("script_exec", code="6 * 7")
    (name,) = re.findall(r"exec-[0-9a-f]{16}", str(first.failure))
    reject(shop, worker.tenant, name, "")
    heard = worker.call("script_exec", code="6 * 7")

    assert "so it was not run. Do not call it again" in str(heard.failure)
    assert "pending" in str(worker.call("script_exec", code="6 * 7 ").failure)


def test_an_administrator_approves_it_after_all(shop: Shop) -> None:
    """By either command, which say that it was rejected; a script without a file as well."""
    worker = shop.office.worker("mcp")
    who = ("--tenant", worker.tenant)
    shop.put("mine", ONE, worker.tenant)
    run(worker)
    which = reject(shop, worker.tenant, "mine", "Not \x1b[2Jtested.")
    code = worker.call("script_exec", code="6 * 7")
    (name,) = re.findall(r"exec-[0-9a-f]{16}", str(code.failure))
    reject(shop, worker.tenant, name, "")
    listed = gatepost(shop, "scripts", "list", *who)
    past = gatepost(shop, *LIST, "--past", *who)
    shown = gatepost(shop, "approvals", "show", *who, which)
    seen = gatepost(shop, "scripts", "approve", name, *who)
    (digest,) = re.findall(r"--digest ([0-9a-f]{64})", seen)
    gatepost(shop, "scripts", "approve", name, "--digest", digest, *who)
    (digest,) = re.findall(r"approve .* --digest (\w+)", shown)
    gatepost(shop, "approvals", "approve", *who, which, "--digest", digest)

    rows = [line.split()[:2] for line in listed.splitlines()]
    assert ["mine", "rejected"] in rows
    assert [name, "rejected"] in rows
    assert which in past
    assert "Not \\x1b[2Jtested." in shown
    assert "has rejected exactly this." in seen
    assert run(worker).value["value"] == "one"
    assert worker.call("script_exec", code="6 * 7").value["value"] == 42


def test_a_rejection_counts_at_every_replica(shop: Shop) -> None:
    """From the next call on, wherever it arrives."""
    with running("serve", "--config", "gatepost.toml", cwd=shop.folder):
        here, there = shop.office.worker("mcp", "far"), shop.elsewhere("mcp", "far")
        shop.put("mine", ONE, "far")
        before = [run(here).failure, run(there).failure]
        reject(shop, "far", "mine", "No.")
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
    """Of a script as of a call; without one there is nothing."""
    assert reason_of(said) == told
