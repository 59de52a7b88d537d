"""Each tool of files and memory does and refuses what its page says, by both protocols."""

import os
import re
from typing import Any, NamedTuple

import pytest

from tests.packs.conftest import PackCaller, PackServer, by_rest


class PackStep(NamedTuple):
    """A call after some files were put there, and what a model reads of its answer."""

    row: str
    tool: str
    arguments: dict[str, Any]
    answer: Any
    files: dict[str, bytes] = {}


NOTES = {"notes.md": "Grüße\n".encode(), "src/a.py": b"1", "src/b/c.py": b"22"}

WORKING_CALLS = [
    PackStep("X1", "fs_list", {}, ["notes.md", "src"], NOTES),
    PackStep("X1", "fs_list", {"path": "/workspace"}, ["notes.md", "src"], NOTES),
    PackStep("X1", "fs_list", {"path": "src"}, ["a.py", "b"], NOTES),
    PackStep("X1", "fs_list", {"path": "/workspace/src/"}, ["a.py", "b"], NOTES),
    PackStep("X1", "fs_list", {"path": "nowhere"}, []),
    PackStep("X1", "fs_list", {}, []),
    PackStep("X1", "fs_read_text", {"path": "notes.md"}, "Grüße\n", NOTES),
    PackStep("X1", "fs_read_text", {"path": "/workspace/notes.md"}, "Grüße\n", NOTES),
    PackStep("X1", "fs_read_text", {"path": "empty"}, "", {"empty": b""}),
    PackStep("X1", "fs_write_text", {"path": "a/b/c.txt", "text": "x"}, "ok"),
    PackStep("X1", "fs_write_text", {"path": "a.txt", "text": "x", "mkdirs": False}, "ok"),
    PackStep("X1", "fs_write_text", {"path": "notes.md", "text": ""}, "ok", NOTES),
    PackStep("X1", "fs_delete", {"path": "notes.md"}, "ok", NOTES),
    PackStep("X1", "fs_delete", {"path": "src", "recursive": True}, "ok", NOTES),
    PackStep("X1", "fs_delete", {"path": "never/was"}, "ok"),
    PackStep("P3", "workspace_read", {"path": "/workspace/notes.md"}, "Grüße\n", NOTES),
    PackStep(
        "P3",
        "workspace_write",
        {"path": "a/b.txt", "content": "Grüße"},
        {"path": "/workspace/a/b.txt", "bytes": 7},
    ),
    PackStep(
        "P4", "memory_read", {}, "Nothing is stored yet. memory_write stores a text under a name."
    ),
    PackStep("P4", "memory_write", {"name": "a.md", "content": "ü"}, {"name": "a.md", "bytes": 2}),
    PackStep(
        "P4",
        "memory_write",
        {"name": "a.md", "content": "ü", "append": True},
        {"name": "a.md", "bytes": 2},
    ),
]


def write_files(agent: PackCaller, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        (agent.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (agent.folder / path).write_bytes(data)


def step_id(step: PackStep) -> Any:
    arguments = " ".join(f"{name}={value}" for name, value in step.arguments.items())
    return pytest.param(
        step, marks=pytest.mark.requirement(step.row), id=f"{step.tool} {arguments}"[:80]
    )


@pytest.mark.parametrize("step", [step_id(step) for step in WORKING_CALLS])
def test_a_call_returns_the_documented_result(agent: PackCaller, step: PackStep) -> None:
    """The result is the same over both protocols."""
    write_files(agent, step.files)

    reply = agent.call(step.tool, **step.arguments)

    assert (reply.failure, reply.value) == (None, step.answer)


FAILING_CALLS = [
    *[
        PackStep("P14", tool, {"path": path, **more}, ("validation", says))
        for tool, more in (
            ("fs_list", {}),
            ("fs_read_text", {}),
            ("fs_write_text", {"text": "x"}),
            ("fs_delete", {}),
            ("workspace_read", {}),
            ("workspace_write", {"content": "x"}),
            ("workspace_list", {}),
        )
        for path, says in (
            ("../etc/passwd", "leads out of the workspace"),
            ("/workspace/../etc/passwd", "leads out of the workspace"),
            ("/etc/passwd", "leads out of the workspace"),
            ("a\0b", "null bytes"),
            ("a\x1bb", "control characters"),
            ("a/" * 2048 + "a", "too long: at most 4096"),
        )
    ],
    PackStep("X1", "fs_list", {"path": "notes.md"}, ("validation", "not a plain file"), NOTES),
    PackStep(
        "X1", "fs_read_text", {"path": "no.md"}, ("not_found", "/workspace/no.md does not exist")
    ),
    PackStep(
        "X1", "fs_read_text", {"path": "src"}, ("validation", "/workspace/src is not a"), NOTES
    ),
    PackStep(
        "X1",
        "fs_read_text",
        {"path": "a.png"},
        ("validation", r"not UTF-8 text but 4 bytes .*image/png"),
        {"a.png": b"\x89PNG"},
    ),
    PackStep("X1", "fs_read_text", {"path": "z"}, ("validation", "not UTF-8 text"), {"z": b"a\0b"}),
    PackStep(
        "X1", "fs_read_text", {"path": "z"}, ("validation", "not UTF-8 text"), {"z": b"a\xc3"}
    ),
    PackStep("X1", "fs_read_text", {"path": "a", "max_bytes": 0}, ("validation", "max_bytes")),
    PackStep(
        "X1",
        "fs_write_text",
        {"path": "no/a.txt", "text": "x", "mkdirs": False},
        ("not_found", "/workspace/no does not exist. Pass mkdirs=true"),
    ),
    PackStep(
        "X1", "fs_write_text", {"path": "src", "text": "x"}, ("validation", "not a plain"), NOTES
    ),
    PackStep(
        "X1",
        "fs_delete",
        {"path": "src"},
        ("validation", "/workspace/src is a folder. Pass recursive=true"),
        NOTES,
    ),
    PackStep("X1", "fs_delete", {"path": ".", "recursive": True}, ("validation", "itself"), NOTES),
    PackStep("X1", "fs_write_text", {"path": "a", "text": "x" * 1_000_001}, ("denied", "is full")),
    PackStep("P3", "workspace_read", {"path": "no.md"}, ("not_found", "/workspace/no.md does not")),
    PackStep("P3", "workspace_list", {"path": "no"}, ("not_found", "/workspace/no does not exist")),
    PackStep("P3", "workspace_list", {"limit": 0}, ("validation", "limit")),
    PackStep(
        "P4", "memory_read", {"name": "no"}, ("not_found", "no memory 'no'. Call memory_read")
    ),
    *[
        PackStep("P4", tool, {"name": name, **more}, ("validation", "letter or digit"))
        for tool, more in (("memory_read", {}), ("memory_write", {"content": "x"}))
        for name in ("", "..", "../a", "a/b", "/a", ".hidden", "a\0b", "a\n", "a.", "x" * 81)
    ],
]


@pytest.mark.parametrize("step", [step_id(step) for step in FAILING_CALLS])
@by_rest
def test_a_failure_explains_the_problem_to_the_model(agent: PackCaller, step: PackStep) -> None:
    """It names the path as the tools show it, and no path of the machine."""
    write_files(agent, step.files)
    kind, says = step.answer

    reply = agent.call(step.tool, **step.arguments)

    assert reply.failure is not None
    assert re.search(says, reply.failure), reply.failure
    assert reply.kind in (None, kind)
    assert str(agent.folder.parent) not in reply.failure


@pytest.mark.requirement("X1", "P3")
@pytest.mark.parametrize("tool", ["fs_read_text", "workspace_read"])
def test_a_long_file_is_cut_at_a_character_and_marked(agent: PackCaller, tool: str) -> None:
    """The cut text is valid and is marked as incomplete."""
    write_files(agent, {"long.txt": "aüü".encode()})

    reply = agent.call(tool, path="long.txt", max_bytes=4)

    assert reply.text.startswith("aü\n\n[Cut: these are the first 3 of 5 bytes.")


@pytest.mark.requirement("P3")
def test_a_folder_is_listed_with_all_that_it_holds(agent: PackCaller) -> None:
    """Names relative to the folder, paths that any tool takes, sizes, times; cut where asked."""
    write_files(agent, NOTES)
    (agent.folder / "src/link").symlink_to("/etc/passwd")
    os.utime(agent.folder / "src/a.py", (1_700_000_000, 1_700_000_000))

    reply = agent.call("workspace_list", path="/workspace/src", recursive=True)
    entries = reply.value["entries"]
    cut = agent.call("workspace_list", path="src", limit=1).value

    assert [(e["name"], e["type"], e["size"]) for e in entries] == [
        ("a.py", "file", 1),
        ("b", "folder", 0),
        ("b/c.py", "file", 2),
        ("link", "link", 0),
    ]
    assert entries[0]["path"] == "/workspace/src/a.py"
    assert entries[0]["modified"] == "2023-11-14T22:13:20+00:00"
    assert reply.value["truncated"] is False
    assert [e["name"] for e in cut["entries"]] == ["a.py"]
    assert cut["truncated"] is True


@pytest.mark.requirement("P4")
def test_a_memory_is_replaced_appended_listed_and_read(agent: PackCaller) -> None:
    """No file tool sees memories."""
    agent.call("memory_write", name="b", content="1")
    agent.call("memory_write", name="Ä note.md", content="x")
    agent.call("memory_write", name="b", content="2")
    grown = agent.call("memory_write", name="b", content="3", append=True)

    assert grown.value == {"name": "b", "bytes": 2}
    assert agent.call("memory_read", name="b").value == "23"
    assert agent.call("memory_read").value == "b\nÄ note.md"
    assert agent.call("fs_list").value == []
    assert agent.call("workspace_list", recursive=True).value["entries"] == []


@pytest.mark.requirement("P3", "P4", "P14", "X1")
@pytest.mark.parametrize("protocol", ["mcp", "rest"])
def test_tenants_with_the_same_file_names_are_isolated(server: PackServer, protocol: Any) -> None:
    """Reading, listing, replacing and deleting touch only the caller's own files."""
    first, other = server.agent(protocol), server.agent(protocol)
    for agent in (first, other):
        agent.call("fs_write_text", path="a/same.txt", text=agent.tenant)
        agent.call("memory_write", name="same", content=agent.tenant)
    other.call("fs_delete", path="a", recursive=True)
    other.call("memory_write", name="same", content="mine", append=True)

    assert first.call("fs_read_text", path="a/same.txt").value == first.tenant
    assert first.call("memory_read", name="same").value == first.tenant
    assert other.call("fs_list").value == []
    for path in (f"../{first.tenant}/a/same.txt", f"/workspace/../{first.tenant}/a/same.txt"):
        assert other.call("fs_read_text", path=path).failure is not None
