"""Git with real hosts: by https with sign-in, and by SSH with keys checked on both sides."""

from typing import Any

import asyncssh
import pytest

from tests.packs.git.conftest import INSIDE, SHELL, World
from tests.packs.office import Worker

pytestmark = pytest.mark.requirement("X2", "X3")


def git(worker: Worker, *args: str, **more: Any) -> dict[str, Any]:
    """What a command answered that was run."""
    heard = worker.call("git", args=list(args), **more)
    assert heard.failure is None, heard.failure
    answer: dict[str, Any] = heard.value
    return answer


def fine(worker: Worker, *args: str) -> str:
    answer = git(worker, *args)
    assert answer["returncode"] == 0, answer
    return str(answer["stdout"])


@pytest.mark.parametrize("road", ["web", "shell"])
def test_a_repository_is_cloned_changed_pushed_and_pulled(
    world: World, worker: Worker, road: str
) -> None:
    """The same by https and by SSH, at addresses that only the server knows."""
    name = f"{road}-{worker.tenant}.git"
    upstream = world.offered(name, README__md=b"one\n")
    url = f"{world.web.url}/{name}" if road == "web" else world.shell.url(name)
    if road == "shell":
        world.shell.allow(worker.call("ssh_public_key").value)

    fine(worker, "clone", "--depth=1", url, "./mine")
    worker.call("fs_write_text", path="mine/README.md", text="two\n")
    fine(worker, "-C", "mine", "commit", "-am", "Say two; it's 100% more & better")
    fine(worker, "-C", "mine", "push", "origin", "main")
    assert upstream.text("README.md") == "two"

    upstream.commit({"README.md": b"three\n"})
    fine(worker, "-C", "mine", "fetch", "--prune")
    assert "three" in fine(worker, "-C", "mine", "show", "origin/main:README.md")
    fine(worker, "-C", "mine", "reset", "--hard", "origin/main")
    upstream.commit({"README.md": b"four\n"})
    git(worker, "-C", "mine", "pull", "--rebase")
    fine(worker, "-C", "mine", "reset", "--hard", "origin/main")
    assert worker.call("fs_read_text", path="mine/README.md").value == "four\n"


def test_an_unknown_key_of_a_tenant_is_not_let_in(world: World, agent: Worker) -> None:
    """Each tenant has its own; a host that knows one knows no other."""
    world.offered(f"locked-{agent.tenant}.git", a=b"1")

    answer = git(agent, "clone", world.shell.url(f"locked-{agent.tenant}.git"), "x")

    assert answer["returncode"] == 128
    assert "Permission denied (publickey)" in answer["stderr"]
    assert "x" not in agent.call("fs_list").value


def test_a_host_with_another_key_is_not_spoken_to(world: World, agent: Worker) -> None:
    """Somebody in between has the name and the address, and not the key."""
    known, world.shell.key = world.shell.key, asyncssh.generate_private_key("ssh-ed25519")
    try:
        with pytest.MonkeyPatch.context() as patch:
            other = type(world.shell)(world.upstream, SHELL)
            with other.running():
                patch.setattr(world.shell, "port", other.port)
                answer = agent.call("git", args=["clone", other.url("any.git"), "x"])
    finally:
        world.shell.key = known

    # Its port is not among the allowed ones either: the address is refused before the key.
    assert answer.failure is not None
    assert "not on the internet" in answer.failure


def test_private_addresses_are_not_reached(world: World, worker: Worker) -> None:
    """By name and by number, by URL and by the name of a remote."""
    seen = len(world.web.seen)
    fine(worker, "init")
    for url in (f"https://{INSIDE}/x.git", f"git@{INSIDE}:x.git", "https://127.0.0.1/x.git"):
        fine(worker, "remote", "add", "inside", url)
        for args in (["clone", url, "x"], ["fetch", url], ["fetch", "inside"], ["fetch"]):
            heard = worker.call("git", args=args)
            assert heard.failure is not None, args
            assert "not on the internet" in heard.failure
            assert heard.kind in (None, "denied")
        fine(worker, "remote", "remove", "inside")

    assert len(world.web.seen) == seen


def test_redirects_are_not_followed(world: World, agent: Worker) -> None:
    """They would lead where nobody checked."""
    world.web.moved_to = "https://127.0.0.1:9"

    answer = git(agent, "clone", f"{world.web.url}/moved/x.git", "x")

    assert answer["returncode"] == 128
    assert "redirect" in answer["stderr"]
