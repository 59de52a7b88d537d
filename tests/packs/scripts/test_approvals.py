"""What runs is what somebody approved: that content, that name, that tenant, at every replica."""

import re
import subprocess
import threading
from typing import Any

import pytest
from click import ClickException

from gatepost.commands.scripts import show
from gatepost.packs.scripts.approvals import Review
from gatepost.packs.scripts.script import Script
from tests.packs.office import Worker
from tests.packs.scripts.shop import WEATHER, Shop
from tests.support.gatepost import ended, running

pytestmark = pytest.mark.requirement("P11")

ONE, OTHER = "def main():\n  return 'one'\n", "def main():\n  return 'other'\n"


def answer(worker: Worker, name: str = "mine") -> Any:
    """The value; of a refusal, that it is one."""
    heard = worker.call("script_run", name=name)
    if heard.failure is not None:
        assert f"Script '{name}.star' is pending approval." in heard.failure
        return "pending"
    return heard.value["value"]


def test_a_change_makes_a_script_unapproved(shop: Shop, worker: Worker) -> None:
    """Also one byte of it; the old content under a new approval counts no more."""
    shop.put("mine", ONE, worker.tenant)
    before = answer(worker)
    shop.approve(worker.tenant, "mine", ONE)
    approved = answer(worker)
    shop.put("mine", ONE + "\n", worker.tenant)
    touched = answer(worker)
    shop.put("mine", OTHER, worker.tenant)
    shop.approve(worker.tenant, "mine", OTHER)
    changed = answer(worker)
    shop.put("mine", ONE, worker.tenant)
    brought_back = answer(worker)

    assert [before, approved, touched, changed, brought_back] == [
        "pending",
        "one",
        "pending",
        "other",
        "pending",
    ]


def test_a_revoked_script_does_not_run(shop: Shop, worker: Worker) -> None:
    """From the next call on."""
    shop.put("mine", ONE, worker.tenant)
    shop.approve(worker.tenant, "mine", ONE)
    before = answer(worker)
    shop.revoke(worker.tenant, "mine")

    assert (before, answer(worker)) == ("one", "pending")


def test_an_approval_binds_the_name(shop: Shop, worker: Worker) -> None:
    """The same bytes under another name are another script: callers choose by names."""
    shop.put("mine", ONE, worker.tenant)
    shop.put("yours", ONE, worker.tenant)
    shop.approve(worker.tenant, "mine", ONE)

    assert (answer(worker, "mine"), answer(worker, "yours")) == ("one", "pending")


def test_two_tenants_with_the_same_names_never_meet(shop: Shop) -> None:
    """Neither their files, nor their approvals, nor what waits."""
    one, other = shop.office.worker("mcp"), shop.office.worker("rest")
    for worker, text in ((one, ONE), (other, OTHER)):
        shop.put("mine", text, worker.tenant)
    shop.approve(one.tenant, "mine", ONE)
    shop.approve_code(one.tenant, "40 + 2")
    names = [script["name"] for script in other.call("script_list").value["scripts"]]

    assert (answer(one), answer(other)) == ("one", "pending")
    assert one.call("script_exec", code="40 + 2").value["value"] == 42
    assert "pending" in str(other.call("script_exec", code="40 + 2").failure)
    assert names.count("mine") == 1
    assert shop.waiting(one.tenant) == []
    shop.approve(other.tenant, "mine", OTHER)
    assert answer(other) == "other"


def test_the_allow_list_is_no_way_in_for_who_writes_to_a_workspace(
    shop: Shop, worker: Worker
) -> None:
    """A name means the operator's file, whatever the tenant calls its own."""
    theirs = "def main():\n  return 'theirs'\n"
    worker.call("fs_write_text", path="scripts/weather.star", text=theirs)
    shadowed = worker.call("script_run", name="weather").value["value"]
    hidden = shop.folder / "operator/weather.star"
    hidden.unlink()
    try:
        gone = answer(worker, "weather")
    finally:
        hidden.write_text(WEATHER, encoding="utf-8")

    assert (shadowed, gone) == ([], "pending")


def test_exactly_the_code_that_was_approved_is_executed(shop: Shop, worker: Worker) -> None:
    """Any other code waits; the name in the refusal is what an administrator approves."""
    first = worker.call("script_exec", code="1 + 1")
    (name,) = re.findall(r"Script '(exec-[0-9a-f]{16})\.star'", str(first.failure))
    shop.approve_code(worker.tenant, "1 + 1")

    assert shop.waiting(worker.tenant) == []
    assert worker.call("script_exec", code="1 + 1").value["value"] == 2
    assert "pending" in str(worker.call("script_exec", code="1 + 1 ").failure)
    assert worker.call("script_run", name=name).failure == f"Error: script '{name}' not found"


def test_what_waits_is_bounded_and_can_be_read(shop: Shop, worker: Worker) -> None:
    """The newest, content and all; of a file its newest version only."""
    for number in range(5):
        worker.call("script_exec", code=f"{number}")
    for text in (ONE, OTHER):
        shop.put("mine", text, worker.tenant)
        worker.call("script_run", name="mine")
        worker.call("script_run", name="mine")
    waiting = shop.at_approvals(worker.tenant, lambda approvals: approvals.waiting())

    assert [one.content for one in waiting] == ["3", "4", OTHER]
    issuer = worker.site.idp.issuer("main")
    askers = {
        (one.by, one.asker and one.asker.issuer, one.asker and one.asker.kind) for one in waiting
    }
    assert askers == {("alice", issuer, "user")}


def test_nobody_slips_other_bytes_between_the_check_and_the_run(shop: Shop, worker: Worker) -> None:
    """While somebody swaps the file as fast as possible, only what is approved ever runs."""
    path = shop.put("mine", ONE, worker.tenant)
    shop.approve(worker.tenant, "mine", ONE)
    over = threading.Event()

    def swap() -> None:
        spare = path.with_name("spare")
        while not over.is_set():
            for text in (OTHER, ONE):
                spare.write_text(text, encoding="utf-8")
                spare.replace(path)

    swapping = threading.Thread(target=swap, daemon=True)
    swapping.start()
    try:
        answers = {answer(worker) for _ in range(15)}
    finally:
        over.set()
        swapping.join(10)

    assert answers <= {"one", "pending"}


def test_a_decision_counts_at_every_replica_at_once(shop: Shop) -> None:
    """Another server on the same database and files asks the store as well, and nothing else."""
    with running("serve", "--config", "gatepost.toml", cwd=shop.folder):
        here, there = shop.office.worker("mcp", "shared"), shop.elsewhere("mcp", "shared")
        shop.put("mine", ONE, "shared")
        before = [answer(here), answer(there)]
        shop.approve("shared", "mine", ONE)
        approved = [answer(there), answer(here)]
        first_reload = here.call("script_reload").value["new"]
        second_reload = there.call("script_reload").value["new"]
        shop.revoke("shared", "mine")
        revoked = [answer(here), answer(there)]

    assert before == revoked == ["pending", "pending"]
    assert approved == ["one", "one"]
    assert "mine" in first_reload
    assert second_reload == []


def test_bytes_are_allowed_by_their_hash_wherever_they_lie(shop: Shop) -> None:
    """As `sha256sum` prints it; one other byte, or another name, and it waits."""
    settings = shop.office.site.inside.config.packs.scripts
    bound = f"mine@sha256:{_sha256(ONE)}"
    allows = type(settings)(allow=[bound])

    assert Script("mine", ONE.encode(), "workspace").allowed_by(allows)
    assert Script("mine", ONE.encode(), "server").allowed_by(allows)
    assert not Script("mine", OTHER.encode(), "workspace").allowed_by(allows)
    assert not Script("yours", ONE.encode(), "workspace").allowed_by(allows)
    assert not Script("mine", ONE.encode(), "code").allowed_by(allows)


def _sha256(text: str) -> str:
    done = subprocess.run(["sha256sum"], input=text.encode(), capture_output=True, check=True)
    return done.stdout.split()[0].decode()


@pytest.fixture
def asked(shop: Shop) -> Any:
    """`gatepost scripts …` as a process of its own."""

    def ask(*arguments: str) -> tuple[int, str, str]:
        return ended("scripts", *arguments, cwd=shop.folder)

    return ask


def test_an_administrator_approves_what_was_shown_and_nothing_else(shop: Shop, asked: Any) -> None:
    """By its digest, while the server runs; what changed meanwhile is not approved."""
    worker = shop.office.worker("mcp")
    who = ("--tenant", worker.tenant)
    shop.put("mine", "# \x1b[2J\u202ehidden\n" + ONE, worker.tenant)
    before = answer(worker)
    code, shown, _ = asked("approve", "mine", *who)
    (digest,) = re.findall(r"--digest ([0-9a-f]{64})", shown)
    still = answer(worker)
    shop.put("mine", OTHER, worker.tenant)
    worker.call("script_run", name="mine")
    stale, _, says = asked("approve", "mine", "--digest", digest, *who)
    unchanged = answer(worker)
    shop.put("mine", ONE, worker.tenant)
    _, shown_again, _ = asked("approve", "mine", *who)
    (digest,) = re.findall(r"--digest ([0-9a-f]{64})", shown_again)
    approved, _, _ = asked("approve", "mine.star", "--digest", digest, *who)

    assert (code, stale, approved) == (0, 1, 0)
    assert "\\x1b[2J\\u202ehidden" in shown
    assert "\x1b" not in shown
    assert "return 'one'" in shown
    assert "Nothing was approved" in says
    assert (before, still, unchanged, answer(worker)) == ("pending", "pending", "pending", "one")


def test_an_administrator_sees_what_there_is(shop: Shop, asked: Any) -> None:
    """What is approved, what waits, what the configuration allows; a revocation counts at once."""
    worker = shop.office.worker("mcp")
    who = ("--tenant", worker.tenant)
    shop.put("mine", ONE, worker.tenant)
    shop.approve(worker.tenant, "mine", ONE)
    shop.put("mine", OTHER, worker.tenant)
    shop.put("quiet", ONE, worker.tenant)
    answer(worker)
    worker.call("script_exec", code="1")
    _, listed, _ = asked("list", *who)
    states = sorted(tuple(line.split()[:2]) for line in listed.splitlines()[1:])
    gone, _, _ = asked("revoke", "mine", *who)

    assert [one for one in states if one[0] in ("mine", "quiet", "weather", "new_feature")] == [
        ("mine", "approved"),
        ("mine", "waits"),
        ("new_feature", "not"),
        ("quiet", "not"),
        ("weather", "allowed"),
    ]
    assert [state for name, state in states if name.startswith("exec-")] == ["waits"]
    assert gone == 0
    assert shop.waiting(worker.tenant)[0].startswith("exec-")


def test_the_command_says_what_is_wrong(asked: Any) -> None:
    """In a sentence, with exit code 1; a tenant that cannot be is not taken for an empty one."""
    code, _, says = asked("list", "--tenant", "../acme")

    assert code == 1
    assert says.endswith("Error: The configuration knows no tenant ../acme.")


def test_what_is_different_from_what_was_approved_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Line by line, with what a terminal would act on as escapes."""
    before = Review(name="mine", digest="", content=ONE, place="code", by="admin", at=0)

    show(Script("mine", (OTHER + "# \x9b31m\r\u2067").encode(), "workspace"), before, "acme")

    shown = capsys.readouterr().out
    assert "-  return 'one'\n-\n+  return 'other'\n+# \\x9b31m\\r\\u2067\n" in shown


def test_bytes_that_nobody_can_read_are_not_shown_for_approval() -> None:
    """What is no text is no script."""
    with pytest.raises(ClickException, match=r"binary\.star is no UTF-8 text"):
        show(Script("binary", b"\xff", "workspace"), None, "acme")


def test_a_reload_lets_no_more_wait_than_may(shop: Shop, worker: Worker) -> None:
    """However many scripts somebody wrote; what is waiting already stays as it is."""
    for number in range(6):
        shop.put(f"mine-{number}", ONE, worker.tenant)

    reloads = [worker.call("script_reload").value["unapproved"] for _ in range(2)]

    assert reloads[0] == reloads[1] == [*(f"mine-{n}" for n in range(6)), "new_feature"]
    assert len(shop.waiting(worker.tenant)) == 3
