"""What a lister returns, as the list of resources shows it."""

from typing import Any

import pytest

from gatepost import CallContext, ListedResource, Pack
from tests.support.endpoint import EndpointClient

HALF_CHARACTER = "\ud800"
UNENCODABLE_MEMBERS: dict[str, dict[str, Any]] = {
    "half a character in the description": {"description": f"a{HALF_CHARACTER}"},
    "half a character in the name": {"name": HALF_CHARACTER},
    "half a character in the title": {"title": HALF_CHARACTER},
    "an object for a description": {"description": object()},
    "an object for an icon": {"icons": (object(),)},
    "an object for its relevance": {"relevance": object()},
}


@pytest.mark.parametrize("members", UNENCODABLE_MEMBERS.values(), ids=UNENCODABLE_MEMBERS)
async def test_an_entry_that_cannot_be_encoded_is_left_out(
    caplog: pytest.LogCaptureFixture, members: dict[str, Any]
) -> None:
    """All others are listed, and one line of the log says how many are missing."""
    pack = Pack("p")

    @pack.resource("n:{x}")
    async def read(ctx: CallContext, x: int) -> str:
        """Hold a number."""
        return str(x)

    @read.list
    async def entries(ctx: CallContext) -> list[ListedResource]:
        """List resources, of which two cannot be encoded."""
        listed = [ListedResource(variables={"x": str(number)}) for number in range(250)]
        for number in (7, 207):
            listed[number] = ListedResource(variables={"x": str(number)}, **members)
        return listed

    response = await EndpointClient(pack.offers).ask("resources/list")

    uris = {resource["uri"] for resource in response.json["result"]["resources"]}
    assert uris == {f"n:{number}" for number in range(250)} - {"n:7", "n:207"}
    missing = [
        (vars(record)["offer"], vars(record)["reason"], vars(record)["count"])
        for record in caplog.records
        if record.message == "list_incomplete"
    ]
    assert missing == [("n:{x}", "unencodable", 2)]


def overlapping_listers(calls: list[str]) -> Pack:
    """Return a pack of three listers, some of whose entries have the same URIs."""
    pack = Pack("p")
    for start, text in enumerate(("n:{x}", "n:1{x}", "n:{+x}")):
        add_lister(pack, text, start, calls)
    return pack


def add_lister(pack: Pack, text: str, start: int, calls: list[str]) -> None:
    @pack.resource(text, name=f"numbers_{start}")
    async def read(ctx: CallContext, x: str) -> str:
        """Hold a number."""
        return x

    @read.list
    async def entries(ctx: CallContext) -> list[ListedResource]:
        """List every third number, the largest first."""
        calls.append(text)
        return [
            ListedResource(variables={"x": str(number)}, name=f"{number} of {text}")
            for number in range(start + 60, 0, -3)
        ]


@pytest.mark.requirement("C-11")
async def test_pages_of_several_listers_hold_every_entry_once() -> None:
    """Their pages together are the list in one page, however small they are."""
    offers = overlapping_listers([]).offers
    whole = (await EndpointClient(offers).ask("resources/list")).json["result"]["resources"]
    for page_size in (1, 7, len(whole) - 1, len(whole)):
        client, cursor, listed = EndpointClient(offers, page_size=page_size), None, []
        while True:
            params = {} if cursor is None else {"cursor": cursor}
            result = (await client.ask("resources/list", params)).json["result"]
            listed += result["resources"]
            if (cursor := result.get("nextCursor")) is None:
                break
        assert listed == whole
    assert len({entry["uri"] for entry in whole}) == len(whole) > 40


@pytest.mark.requirement("C-09")
async def test_no_lister_runs_for_an_invalid_cursor() -> None:
    calls: list[str] = []
    client = EndpointClient(overlapping_listers(calls).offers)

    response = await client.ask("resources/list", {"cursor": "invalid"})

    assert response.json["error"]["message"] == "Invalid cursor"
    assert calls == []
