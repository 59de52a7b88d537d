"""The skills extension: only callers with the scopes list, open and read skills."""

import hashlib
from base64 import b64decode
from pathlib import Path

import pytest

from gatepost import Pack
from tests.support.endpoint import EndpointClient, a_caller
from tests.support.measuring import each

SKILL = Path(__file__).with_name("skills") / "greet-visitor"
BASE_URI = "skill://front_desk/greet-visitor"
EXTENSION = "io.modelcontextprotocol/skills"


def a_client(*, scopes: frozenset[str] = frozenset(), obtainable: bool = True) -> EndpointClient:
    pack = Pack("front_desk")
    pack.skill(SKILL, scopes=scopes)
    return EndpointClient(pack.offers, obtainable=None if obtainable else frozenset())


@pytest.mark.requirement("X-01", "X-05")
async def test_x_01_a_server_with_skills_declares_them() -> None:
    """Its settings are directly under the identifier; without skills it is missing."""
    declared = (await a_client().ask("server/discover")).json["result"]["capabilities"]
    without = (await EndpointClient().ask("server/discover")).json["result"]["capabilities"]

    assert declared["extensions"][EXTENSION] == {"directoryRead": True}
    assert "resources" in declared
    assert EXTENSION not in without["extensions"]
    assert (await EndpointClient().ask("skills/list")).error == (404, -32601)


async def test_every_file_that_is_listed_can_be_read_and_has_its_digest() -> None:
    """The digest that a client verifies is that of the file it reads."""
    client = a_client()
    (entry,) = (await client.ask("skills/list")).json["result"]["skills"]

    assert entry["uri"] == f"{BASE_URI}/SKILL.md"
    assert {file["uri"].removeprefix(BASE_URI) for file in entry["resources"]} == {
        "/SKILL.md",
        "/references/greetings.csv",
    }
    for file in entry["resources"]:
        read = await client.ask("resources/read", {"uri": file["uri"]})
        (contents,) = read.json["result"]["contents"]
        data = contents["text"].encode() if "text" in contents else b64decode(contents["blob"])
        assert f"sha256:{hashlib.sha256(data).hexdigest()}" == file["digest"]
        assert len(data) == file["size"]


async def test_a_single_skill_and_its_folders_can_be_read() -> None:
    """The entry is the listed one; a folder's children can be opened in turn."""
    client = a_client()
    (listed,) = (await client.ask("skills/list")).json["result"]["skills"]

    skill = (await client.ask("skills/get", {"uri": f"{BASE_URI}/SKILL.md"})).json["result"]
    top = (await client.ask("resources/directory/read", {"uri": BASE_URI})).json["result"]
    below = (await client.ask("resources/directory/read", {"uri": f"{BASE_URI}/references"})).json

    assert skill["skill"] == listed
    assert (skill["cacheScope"], "nextCursor" in skill) == ("private", False)
    assert [(child["name"], child["mimeType"]) for child in top["resources"]] == [
        ("SKILL.md", "text/markdown"),
        ("references", "inode/directory"),
    ]
    assert [child["name"] for child in below["result"]["resources"]] == ["greetings.csv"]


@pytest.mark.requirement("X-04")
@each("method", ["skills/get", "resources/directory/read"])
@each(
    "uri",
    [
        "skill://front_desk/other/SKILL.md",
        f"{BASE_URI}/..",
        f"{BASE_URI}/references/",
        "",
        "x" * 9000,
    ],
)
async def test_x_04_an_unknown_skill_or_folder_is_invalid_params(method: str, uri: str) -> None:
    """-32602 for every URI that was not listed, in any spelling."""
    assert (await a_client().ask(method, {"uri": uri})).error == (400, -32602)


@pytest.mark.parametrize(
    ("method", "uri"),
    [
        ("skills/get", f"{BASE_URI}/SKILL.md"),
        ("resources/directory/read", BASE_URI),
        ("resources/read", f"{BASE_URI}/references/greetings.csv"),
    ],
)
async def test_a_skill_and_its_files_need_the_same_scopes(method: str, uri: str) -> None:
    """
    A caller that can obtain the scopes sees the skill and is challenged for all of them; to other
    callers the skill is unknown.
    """
    stepping = a_client(scopes=frozenset({"desk:read"}))
    stepping.caller = a_caller(scopes=frozenset())
    outside = a_client(scopes=frozenset({"desk:read"}), obtainable=False)
    outside.caller = a_caller(scopes=frozenset())

    listed = (await stepping.ask("skills/list")).json["result"]["skills"]
    challenged = await stepping.ask(method, {"uri": uri})
    hidden = (await outside.ask("skills/list")).json["result"]["skills"]
    unknown = await outside.ask(method, {"uri": uri})

    assert [skill["uri"] for skill in listed] == [f"{BASE_URI}/SKILL.md"]
    assert challenged.status == 403
    assert 'scope="desk:read"' in challenged.headers["www-authenticate"]
    assert hidden == []
    assert unknown.error == (400, -32602)
