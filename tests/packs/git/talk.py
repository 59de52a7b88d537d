"""Calls of `git`, and what their answers must be."""

from typing import Any

from tests.packs.office import Worker


def git(worker: Worker, *args: str, **more: Any) -> dict[str, Any]:
    """What a command answered that was run."""
    heard = worker.call("git", args=list(args), **more)
    assert heard.failure is None, heard.failure
    answer: dict[str, Any] = heard.value
    return answer


def fine(worker: Worker, *args: str) -> str:
    """What a command printed that went well."""
    answer = git(worker, *args)
    assert answer["returncode"] == 0, answer
    return str(answer["stdout"])


def refused(worker: Worker, *args: str, **more: Any) -> str:
    """Why a command was not run."""
    heard = worker.call("git", args=list(args), **more)
    assert heard.failure is not None, heard.value
    return heard.failure
