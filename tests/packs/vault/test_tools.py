"""Each tool of the vault does and refuses what its page says, by both protocols."""

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.packs.conftest import PackCaller, PackServer, by_mcp, by_rest

pytestmark = pytest.mark.requirement("P5")

OLD_TIME = 1_700_000_000
OLD_TIME_TEXT = "2023-11-14T22:13:20+00:00"

NOTES = {
    "Home.md": "---\ntags: [start]\naliases: [Front page]\n---\n# Welcome\nSee [[Plan]] and "
    "[[Ideas/Plan|the other]], ![[map.png]], [web](https://x.org), [[Missing#Part]].\n",
    "Plan.md": "Buy milk and unicorns. #todo/soon\n",
    "Ideas/Plan.md": "A second plan, see [home](../Home.md). #todo\n\n## Details\nMore.\n\n## E\n",
    "Ideas/Rechnung.md": "---\ntitle: Rechnungen\nbroken: [\n---\nBüro, 東京都庁\n",
    "map.png": "no note",
    ".obsidian/plugin.md": "unicorns are hidden here",
}


def filled_vault(agent: PackCaller, notes: dict[str, str] = NOTES) -> Path:
    vault = agent.folder / "vault"
    for path, text in notes.items():
        (vault / path).parent.mkdir(parents=True, exist_ok=True)
        (vault / path).write_text(text)
        os.utime(vault / path, (OLD_TIME, OLD_TIME))
    return vault


def test_a_note_is_read_with_front_matter_tags_links_and_backlinks(agent: PackCaller) -> None:
    """Front matter, text, tags, links with where they lead, and what links here."""
    filled_vault(agent)

    assert agent.call("vault_read", path="Home.md").value == {
        "path": "/vault/Home.md",
        "title": "Welcome",
        "front_matter": {"tags": ["start"], "aliases": ["Front page"]},
        "content": NOTES["Home.md"].split("---\n", 2)[2],
        "tags": ["start"],
        "aliases": ["Front page"],
        "links": [
            {"target": "Plan", "path": "/vault/Plan.md", "text": "", "embed": False},
            {
                "target": "Ideas/Plan",
                "path": "/vault/Ideas/Plan.md",
                "text": "the other",
                "embed": False,
            },
            {"target": "map.png", "path": "/vault/map.png", "text": "", "embed": True},
            {"target": "Missing#Part", "path": None, "text": "", "embed": False},
        ],
        "backlinks": [{"path": "/vault/Ideas/Plan.md", "title": "Plan"}],
        "modified": OLD_TIME_TEXT,
        "truncated": False,
        "remarks": [],
    }


class NoteLookup(NamedTuple):
    """How a note is asked for, which one comes, and what is said about it."""

    path: str
    found: str
    remark: str = ""


NOTE_LOOKUPS = [
    NoteLookup("/vault/Plan.md", "Plan.md"),
    NoteLookup("Plan", "Plan.md", "2 notes are called 'Plan'.* the shortest path.*Ideas/Plan.md"),
    NoteLookup("[[Plan]]", "Plan.md", "2 notes are called 'Plan'"),
    NoteLookup("plan", "Plan.md", "2 notes are called 'plan'.* the shortest path.*Ideas/Plan.md"),
    NoteLookup("[[Ideas/Plan]]", "Ideas/Plan.md"),
    NoteLookup("[[rechnung|x]]", "Ideas/Rechnung.md", "not valid YAML at line 4.*shown as text"),
    NoteLookup("![[Rechnung.md]]", "Ideas/Rechnung.md", "not valid YAML"),
    NoteLookup("front PAGE", "Home.md"),
    NoteLookup("[[Home#Welcome]]", "Home.md"),
    NoteLookup("Home#Nowhere", "Home.md", "no heading 'Nowhere'"),
    NoteLookup("[[Home#^block]]", "Home.md", "no heading '.block'; all of it is shown"),
]


@pytest.mark.parametrize("named", NOTE_LOOKUPS, ids=[named.path for named in NOTE_LOOKUPS])
@by_mcp
def test_a_note_is_found_by_path_name_link_or_alias(agent: PackCaller, named: NoteLookup) -> None:
    """Of several notes the shortest path is read, with a remark."""
    filled_vault(agent)

    reply = agent.call("vault_read", path=named.path)

    assert reply.failure is None
    assert reply.value["path"] == f"/vault/{named.found}"
    assert re.search(named.remark, " ".join(reply.value["remarks"])), reply.value["remarks"]
    assert bool(reply.value["remarks"]) == bool(named.remark)


def test_a_note_is_read_from_a_heading(agent: PackCaller) -> None:
    """Broken front matter is part of the text."""
    filled_vault(agent)

    assert (
        agent.call("vault_read", path="Ideas/Plan#Details").value["content"]
        == "## Details\nMore.\n"
    )
    broken = agent.call("vault_read", path="Ideas/Rechnung").value
    assert broken["front_matter"] is None
    assert broken["content"] == NOTES["Ideas/Rechnung.md"]


def test_a_long_note_is_cut_and_says_so(agent: PackCaller) -> None:
    """The cut leaves valid text."""
    filled_vault(agent, {"Long.md": "ü" * 350_000})

    value = agent.call("vault_read", path="Long").value

    assert (len(value["content"]), value["truncated"]) == (300_000, True)
    assert "Cut after 300000 characters; the note has 700000 bytes." in value["remarks"][0]


class WriteCase(NamedTuple):
    """What is written over what, and what stands there then."""

    before: str | None
    arguments: dict[str, Any]
    after: str
    remark: str = ""


FRONT_MATTER = "---\n# mine\na: 1\nday: 2024-01-31\n---\n"

WRITE_CASES = [
    WriteCase(None, {"content": "x\n"}, "x\n"),
    WriteCase(None, {"content": "x", "front_matter": {"a": [1]}}, "---\na:\n- 1\n---\nx"),
    WriteCase(None, {"content": "x", "append": True}, "x"),
    WriteCase("old", {"content": "x"}, "x"),
    WriteCase(f"{FRONT_MATTER}old", {"content": "x"}, f"{FRONT_MATTER}x"),
    WriteCase(f"{FRONT_MATTER}old", {"content": "---\nb: 2\n---\nx"}, "---\nb: 2\n---\nx"),
    WriteCase(
        f"{FRONT_MATTER}old",
        {"content": "---\nb: [\n---\nx"},
        f"{FRONT_MATTER}---\nb: [\n---\nx",
        "not valid YAML",
    ),
    WriteCase(
        f"{FRONT_MATTER}old",
        {"content": "x", "front_matter": {"a": None, "b": "c"}},
        "---\n# mine\nday: 2024-01-31\nb: c\n---\nx",
    ),
    WriteCase(f"{FRONT_MATTER}old", {"content": "x", "front_matter": {}}, f"{FRONT_MATTER}x"),
    WriteCase(f"{FRONT_MATTER}old", {"content": "x", "append": True}, f"{FRONT_MATTER}old\nx"),
    WriteCase("old\n", {"content": "---\nb: 2\n---\n", "append": True}, "old\n---\nb: 2\n---\n"),
    WriteCase(
        f"{FRONT_MATTER}old\n",
        {"content": "x", "append": True, "front_matter": {"a": 2}},
        "---\n# mine\na: 2\nday: 2024-01-31\n---\nold\nx",
    ),
    WriteCase("---\na: [\n---\nold", {"content": "x"}, "x"),
    WriteCase("---\na: [\n---\nold", {"content": "x", "append": True}, "---\na: [\n---\nold\nx"),
]


@pytest.mark.parametrize("case", WRITE_CASES, ids=[str(n) for n in range(len(WRITE_CASES))])
@by_mcp
def test_a_note_is_written_and_its_front_matter_kept(agent: PackCaller, case: WriteCase) -> None:
    """The call replaces or appends text, and leaves properties that it does not name."""
    if case.before is not None:
        filled_vault(agent, {"New/Note.md": case.before})

    reply = agent.call("vault_write", path="New/Note", **case.arguments)

    assert reply.failure is None
    assert reply.value["path"] == "/vault/New/Note.md"
    assert reply.value["bytes"] == len(case.after.encode())
    assert reply.value["created"] == (case.before is None)
    assert bool(reply.value["remarks"]) == bool(case.remark)
    assert (agent.folder / "vault/New/Note.md").read_bytes() == case.after.encode()


def test_notes_are_listed(agent: PackCaller) -> None:
    """The list has titles and tags by path, in pages, without attachments and hidden folders."""
    filled_vault(agent)

    whole = agent.call("vault_list").value
    page = agent.call("vault_list", limit=1, offset=1).value
    folder = agent.call("vault_list", folder="/vault/Ideas/").value

    assert [note["path"] for note in whole["notes"]] == [
        "/vault/Home.md",
        "/vault/Ideas/Plan.md",
        "/vault/Ideas/Rechnung.md",
        "/vault/Plan.md",
    ]
    assert (whole["total"], whole["remarks"]) == (4, [])
    assert page["notes"] == [
        {
            "path": "/vault/Ideas/Plan.md",
            "title": "Plan",
            "tags": ["todo"],
            "modified": OLD_TIME_TEXT,
        }
    ]
    assert page["total"] == 4
    assert [note["title"] for note in folder["notes"]] == ["Plan", "Rechnung"]
    assert agent.call("vault_list", tag="#ToDo").value["total"] == 2
    assert agent.call("vault_list", tag="todo/soon").value["total"] == 1
    assert agent.call("vault_list", tag="to").value["total"] == 0


def test_an_empty_vault_is_no_failure(agent: PackCaller) -> None:
    """No tool has written a note yet."""
    assert agent.call("vault_list").value == {"notes": [], "total": 0, "remarks": []}
    assert agent.call("vault_search", query="x").value["hits"] == []


SEARCHES = [
    ("unicorns", ["Plan"]),
    ("UNICORN", ["Plan"]),
    ("buro", ["Rechnung"]),
    ("京都", ["Rechnung"]),
    ("京東", []),
    ("plan", ["Plan", "Plan", "Welcome"]),
    ('"second plan"', ["Plan"]),
    ("uni*", ["Plan"]),
    ("plan -milk", ["Plan", "Welcome"]),
    ("front page", ["Welcome"]),
    ("todo", ["Plan", "Plan"]),
    ("hidden", []),
    ("milk -unicorns", []),
]


@pytest.mark.parametrize(("query", "titles"), SEARCHES, ids=[s[0] for s in SEARCHES])
@by_mcp
def test_notes_are_found_by_text_title_alias_and_tag(
    agent: PackCaller, query: str, titles: list[str]
) -> None:
    """Case and accents do not matter, in any script."""
    filled_vault(agent)

    value = agent.call("vault_search", query=query).value

    assert sorted(hit["title"] for hit in value["hits"]) == titles
    assert value["matched"] == "all words"
    assert value["hits"] == sorted(value["hits"], key=lambda hit: -hit["score"])


def test_a_hit_has_a_snippet_of_the_text(agent: PackCaller) -> None:
    """A snippet of the text; notes that hold only some of the words where none holds all."""
    filled_vault(agent)

    some = agent.call("vault_search", query="unicorns rechnungen xyzzy", limit=1).value
    (tokyo,) = agent.call("vault_search", query="東京").value["hits"]
    tagged = agent.call("vault_search", query="plan", tag="todo/soon").value["hits"]

    assert some["matched"] == "some words"
    assert len(some["hits"]) == 1
    assert "**東京**都庁" in tokyo["snippet"].replace("****", "")
    assert [hit["path"] for hit in tagged] == ["/vault/Plan.md"]
    assert tagged[0]["snippet"].startswith("Buy milk and unicorns.")


ODD_QUERIES = [
    '"', "'", "a AND", "NOT", "AND OR NOT", "a OR", "(a", "a)", "a:b", "title:unicorns", "^a",
    "a^2", "NEAR(a b)", "a + b", "{a b}: c", "-", "a -", "*", "a**", "%", "a;DROP TABLE words",
    "a--b", "/* a", "\\", "a\\\"b", "\u0000a", "🏷️ a", "ﬁ", "'; DELETE FROM files; --", "a \n\t b",
]  # fmt: skip


@pytest.mark.parametrize("query", ODD_QUERIES, ids=[ascii(q) for q in ODD_QUERIES])
@by_mcp
def test_every_query_is_valid_in_the_search_language(agent: PackCaller, query: str) -> None:
    """A query without words fails with a sentence that says what it may contain."""
    filled_vault(agent)

    reply = agent.call("vault_search", query=query)

    if reply.failure is None:
        assert isinstance(reply.value["hits"], list)
    else:
        assert "`query` holds no word to search for" in reply.failure
    assert agent.call("vault_list").value["total"] == 4


class VaultFailure(NamedTuple):
    """A call that cannot work, and what it says."""

    tool: str
    arguments: dict[str, Any]
    kind: str
    says: str


FAILING_CALLS = [
    VaultFailure(
        "vault_read",
        {"path": "Hom"},
        "not_found",
        r"no note 'Hom' .*Similar names are: home\. vault_s",
    ),
    VaultFailure(
        "vault_read", {"path": "a/b/zzz"}, "not_found", "no note 'a/b/zzz' in the vault. vault_"
    ),
    VaultFailure("vault_read", {"path": "map.png"}, "not_found", "no note 'map.png'"),
    VaultFailure("vault_read", {"path": "../x"}, "validation", "leads out of the workspace"),
    VaultFailure("vault_read", {"path": "[[../x]]"}, "validation", "leads out of the workspace"),
    VaultFailure(
        "vault_read", {"path": "/workspace/vault/Home.md"}, "validation", "start with /vault/"
    ),
    VaultFailure("vault_read", {"path": ".obsidian/plugin"}, "validation", "leading dot"),
    VaultFailure("vault_read", {"path": "Binary"}, "validation", "not UTF-8 text"),
    VaultFailure("vault_write", {"path": ".git/x", "content": "x"}, "validation", "leading dot"),
    VaultFailure("vault_write", {"path": "a/", "content": "x"}, "validation", "names a folder"),
    VaultFailure(
        "vault_write", {"path": "Home.md/x", "content": "x"}, "validation", "not a plain file"
    ),
    VaultFailure(
        "vault_write", {"path": "Binary", "content": "x"}, "validation", "not UTF-8 text, so it"
    ),
    VaultFailure(
        "vault_write",
        {"path": "Ideas/Rechnung", "content": "x", "append": True, "front_matter": {"a": 1}},
        "validation",
        "`front_matter` cannot be set: .*not valid YAML",
    ),
    VaultFailure(
        "vault_write",
        {"path": "x", "content": "x", "front_matter": {"a": "x" * 70_000}},
        "validation",
        "would have more than 64000 bytes",
    ),
    VaultFailure("vault_write", {"path": "x", "content": "x" * 1_000_001}, "denied", "is full"),
    VaultFailure("vault_list", {"folder": "Nowhere"}, "not_found", "/vault/Nowhere does not exist"),
    VaultFailure("vault_list", {"folder": "Home.md"}, "validation", "not a plain file"),
    VaultFailure("vault_list", {"limit": 0}, "validation", "limit"),
    VaultFailure("vault_search", {"query": "..."}, "validation", "holds no word to search for"),
    VaultFailure("vault_search", {"query": "x" * 1001}, "validation", "query"),
]


@pytest.mark.parametrize(
    "case", FAILING_CALLS, ids=[f"{c.tool}-{n}" for n, c in enumerate(FAILING_CALLS)]
)
@by_rest
def test_a_failure_explains_the_problem_to_the_model(agent: PackCaller, case: VaultFailure) -> None:
    """It names paths of the vault and no path of the machine."""
    (filled_vault(agent) / "Binary.md").write_bytes(b"\xff\xfe\0")

    reply = agent.call(case.tool, **case.arguments)

    assert reply.failure is not None
    assert re.search(case.says, reply.failure), reply.failure
    assert reply.kind in (None, case.kind)
    assert str(agent.folder.parent) not in reply.failure


@pytest.mark.requirement("P14")
def test_a_target_of_a_symbolic_link_is_not_found(agent: PackCaller) -> None:
    """A search finds it neither by its words nor by its name."""
    vault = filled_vault(agent)
    (agent.folder.parent / "theirs.md").write_text("xyzzy of somebody else")
    (vault / "Link.md").symlink_to(agent.folder.parent / "theirs.md")
    (vault / "folder").symlink_to(agent.folder.parent)

    assert agent.call("vault_search", query="xyzzy").value["hits"] == []
    assert agent.call("vault_list").value["total"] == 4
    assert agent.call("vault_read", path="theirs").failure is not None
    assert "There is no note 'Link'" in str(agent.call("vault_read", path="Link").failure)


@pytest.mark.requirement("P14")
@pytest.mark.parametrize("protocol", ["mcp", "rest"])
def test_tenants_with_the_same_notes_are_isolated(server: PackServer, protocol: Any) -> None:
    """Reading, searching and links lead only to the caller's own notes."""
    first, other = server.agent(protocol), server.agent(protocol)
    for agent in (first, other):
        agent.call("vault_write", path="Same", content=f"Of {agent.tenant} [[Same]]")
    other.call("vault_write", path="Only", content="[[Same]] xyzzy")

    assert first.call("vault_read", path="Same").value["content"] == f"Of {first.tenant} [[Same]]"
    assert first.call("vault_read", path="Same").value["backlinks"] == []
    assert first.call("vault_search", query="xyzzy").value["hits"] == []
    assert first.call("vault_list").value["total"] == 1
    assert first.call("vault_read", path=f"../../{other.tenant}/vault/Only").failure is not None
