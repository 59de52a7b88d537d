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
