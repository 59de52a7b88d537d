"""Lists in pages: cursors that are good for one caller, one list and nothing else."""

import base64
from functools import cache
from typing import Any

import pytest

from gatepost import CallContext, ListedResource, Pack
from gatepost.mcp.listing import PURPOSE
from gatepost.tools.offers.offer import Offer
from tests.support.endpoint import VERSION, EndpointClient, Response, a_caller
from tests.support.endpoint_clients import REVISIONS, ask
from tests.support.measuring import each

LIST_MEMBERS = {
    "tools/list": ("tools", "name"),
    "prompts/list": ("prompts", "name"),
    "resources/list": ("resources", "uri"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate"),
}
PER_METHOD = pytest.mark.parametrize("method", LIST_MEMBERS)


@cache
def many_offers(count: int = 7, scopes: frozenset[str] = frozenset()) -> list[Offer]:
    """Return so many offers of each kind."""
    pack = Pack("many")
    for number in range(count):

        @pack.tool(name=f"tool_{number}", scopes=scopes)
        async def tool(ctx: CallContext) -> None:
            """Do nothing."""

        @pack.prompt(name=f"prompt_{number}", scopes=scopes)
        async def prompt(ctx: CallContext) -> str:
            """Say nothing."""
            return ""

        @pack.resource(f"fixed://{number}", name=f"fixed_{number}", scopes=scopes)
        async def fixed(ctx: CallContext) -> str:
            """Hold nothing."""
            return ""

        @pack.resource(f"kind{number}://{{x}}", name=f"kind_{number}", scopes=scopes)
        async def kind(ctx: CallContext, x: str) -> str:
            """Hold nothing."""
            return ""

    return [*pack.offers]


async def all_pages(client: EndpointClient, revision: str, method: str) -> list[dict[str, Any]]:
    """Return all results of one list, in order."""
    entries: list[dict[str, Any]] = []
    more: dict[str, str] = {}
    while True:
        result = (await ask(client, revision, method, **more)).json["result"]
        entries.append(result)
        if "nextCursor" not in result:
            return entries
        more = {"cursor": result["nextCursor"]}


def keys(results: list[dict[str, Any]], method: str) -> list[str]:
    member, key = LIST_MEMBERS[method]
    return [entry[key] for result in results for entry in result[member]]


async def cursor_of(
    client: EndpointClient, method: str = "tools/list", revision: str = VERSION
) -> str:
    cursor: str = (await ask(client, revision, method)).json["result"]["nextCursor"]
    return cursor


@pytest.mark.requirement("C-09", "C-11", "C-03")
@PER_METHOD
@each("revision", REVISIONS)
async def test_c_11_c_03_pages_hold_every_entry_once(revision: str, method: str) -> None:
    """The entries have the order of one big page, and the last page has no cursor."""
    small, large = EndpointClient(many_offers(), page_size=3), EndpointClient(many_offers())
    results = await all_pages(small, revision, method)
    member, _ = LIST_MEMBERS[method]

    assert [len(result[member]) for result in results] == [3, 3, 1]
    assert keys(results, method) == keys(await all_pages(large, revision, method), method)
    assert len(set(keys(results, method))) == 7
    scopes = {result.get("cacheScope") for result in results}
    assert scopes == ({"private"} if revision == VERSION else {None})


@pytest.mark.requirement("C-09")
@PER_METHOD
async def test_c_09_a_list_that_fits_has_no_cursor(method: str) -> None:
    """A page is full before there is another."""
    assert len(await all_pages(EndpointClient(many_offers(3), page_size=3), VERSION, method)) == 1
    assert len(await all_pages(EndpointClient(many_offers(4), page_size=3), VERSION, method)) == 2


@pytest.mark.requirement("C-09")
async def test_c_09_a_cursor_is_stable_and_unreadable() -> None:
    """Used twice, a cursor gives the same page; a client cannot read its content."""
    client = EndpointClient(many_offers(), page_size=3)
    cursor = await cursor_of(client)
    first = await client.ask("tools/list", {"cursor": cursor})
    again = await client.ask("tools/list", {"cursor": cursor})
    sealed = cursor.partition(".")[2]
    carried = base64.urlsafe_b64decode(sealed + "=" * (-len(sealed) % 4))

    assert keys([first.json["result"]], "tools/list") == keys([again.json["result"]], "tools/list")
    assert b"tool_2" not in carried
    assert b"acme" not in carried


def is_invalid_cursor(response: Response) -> bool:
    return response.error == (400, -32602) and (
        response.json["error"]["message"] == "Invalid cursor"
    )


@pytest.mark.requirement("C-09")
@PER_METHOD
@each("cursor", ["", "x", "a.b", "AAAA.AAAA", "…", "x" * 300_000])
@each("page_size", [3, 500])
async def test_c_09_an_invalid_cursor_is_refused(method: str, cursor: str, page_size: int) -> None:
    """This holds for a single page as well, and for an empty cursor."""
    client = EndpointClient(many_offers(), page_size=page_size)

    assert is_invalid_cursor(await client.ask(method, {"cursor": cursor}))


@pytest.mark.requirement("C-09")
async def test_c_09_a_changed_cursor_is_refused() -> None:
    """A cursor with any character changed is refused."""
    client = EndpointClient(many_offers(), page_size=3)
    cursor = await cursor_of(client)

    for at in range(0, len(cursor), 7):
        other = "A" if cursor[at] != "A" else "B"
        changed = cursor[:at] + other + cursor[at + 1 :]
        assert is_invalid_cursor(await client.ask("tools/list", {"cursor": changed}))


FOREIGN_CALLERS: list[dict[str, Any]] = [
    {"tenant_id": "globex"},
    {"subject": "bob"},
    {"subject_kind": "client"},
    {"actor": "an-agent"},
    {"issuer": "https://other.example.com"},
    {"client_id": "another-client"},
    {"resource": "https://mcp.example.com/other"},
]


@pytest.mark.requirement("C-10")
@PER_METHOD
@each("changes", FOREIGN_CALLERS, ids=lambda change: next(iter(change)))
async def test_c_10_a_cursor_of_another_caller_is_invalid(
    method: str, changes: dict[str, Any]
) -> None:
    """The error is the same as for an invented cursor."""
    client = EndpointClient(many_offers(), page_size=3)
    cursor = await cursor_of(client, method)
    client.caller = a_caller(**changes)

    assert is_invalid_cursor(await client.ask(method, {"cursor": cursor}))


@pytest.mark.requirement("C-10")
async def test_c_10_a_cursor_counts_only_for_its_own_list() -> None:
    """Another method or revision refuses it, and so does another purpose of the same keys."""
    client = EndpointClient(many_offers(), page_size=3)
    cursor = await cursor_of(client)
    session = await ask(client, "2025-11-25", "tools/list", cursor=cursor)
    forged = client.keyring.seal(PURPOSE, b"tool_2")

    assert is_invalid_cursor(await client.ask("prompts/list", {"cursor": cursor}))
    assert session.error == (200, -32602)
    assert is_invalid_cursor(await client.ask("tools/list", {"cursor": forged}))


@pytest.mark.requirement("C-10")
async def test_c_10_a_cursor_is_invalid_after_its_list_changed() -> None:
    """With other scopes or other offers the client has to begin again."""
    client = EndpointClient(
        [*many_offers(), *many_more_offers()], obtainable=frozenset(), page_size=3
    )
    cursor = await cursor_of(client)
    client.caller = a_caller(scopes=frozenset({"more"}))

    assert is_invalid_cursor(await client.ask("tools/list", {"cursor": cursor}))


def many_more_offers() -> list[Offer]:
    pack = Pack("more")

    @pack.tool(scopes={"more"})
    async def another(ctx: CallContext) -> None:
        """Be there for some."""

    return [*pack.offers]


@pytest.mark.requirement("C-09", "C-11")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_c_09_pages_continue_after_the_last_entry_when_the_list_changes(
    revision: str,
) -> None:
    """A lister runs for each page; no entry comes twice, and no entry that stayed is missing."""
    pack, names = Pack("shelf"), [f"b{number}" for number in range(7)]

    @pack.resource("book://{title}")
    async def book(ctx: CallContext, title: str) -> str:
        """Return one book."""
        return title

    @book.list
    async def books(ctx: CallContext) -> list[ListedResource]:
        """List the books on the shelf."""
        return [ListedResource(variables={"title": title}) for title in names]

    client = EndpointClient(pack.offers, page_size=3)
    first = (await ask(client, revision, "resources/list")).json["result"]
    names.remove("b2")
    names.append("a0")
    second = (await ask(client, revision, "resources/list", cursor=first["nextCursor"])).json

    assert keys([first], "resources/list") == ["book://b0", "book://b1", "book://b2"]
    assert keys([second["result"]], "resources/list") == ["book://b3", "book://b4", "book://b5"]


@pytest.mark.requirement("C-09")
async def test_c_09_a_cursor_is_valid_at_every_replica() -> None:
    """The replicas share only the key ring."""
    here = EndpointClient(many_offers(), page_size=3)
    other = EndpointClient(many_offers(), page_size=3, keyring=here.keyring)
    response = await other.ask("tools/list", {"cursor": await cursor_of(here)})

    assert keys([response.json["result"]], "tools/list") == ["tool_3", "tool_4", "tool_5"]
    assert response.json["result"]["nextCursor"]


def books_of(sizes: list[int]) -> list[Offer]:
    """
    Return a template whose entries have descriptions of these sizes, and a longer fixed resource.
    """
    pack = Pack("shelf")

    async def long_book(ctx: CallContext) -> str:
        return ""

    long_book.__doc__ = "x" * 5000
    pack.resource("book://long")(long_book)

    @pack.resource("book://{number}")
    async def book(ctx: CallContext, number: int) -> str:
        """Return one book."""
        return str(number)

    @book.list
    async def books(ctx: CallContext) -> list[ListedResource]:
        """List the books on the shelf."""
        return [
            ListedResource(variables={"number": str(number)}, description="x" * size)
            for number, size in enumerate(sizes)
        ]

    return [*pack.offers]


@pytest.mark.requirement("C-09", "C-11")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_c_09_a_page_of_long_entries_ends_early(revision: str) -> None:
    """However long a list is as a whole, every entry that fits into a result is shown once."""
    client = EndpointClient(books_of([900] * 9), page_size=5, max_result_bytes=3000)
    results = await all_pages(client, revision, "resources/list")

    assert [len(result["resources"]) for result in results] == [3, 3, 3, 1]
    uris = [*(f"book://{number}" for number in range(9)), "book://long"]
    assert keys(results, "resources/list") == uris


@pytest.mark.requirement("C-09")
async def test_c_09_an_entry_that_is_longer_than_a_result_is_left_out() -> None:
    """The entries around it are shown, even if it is alone on its page."""
    sizes = [10, 5000, 10, 5000, 5000, 10, 5000]
    client = EndpointClient(books_of(sizes), page_size=1, max_result_bytes=3000)
    results = await all_pages(client, VERSION, "resources/list")

    assert keys(results, "resources/list") == [
        *(f"book://{number}" for number in (0, 2, 5)),
        "book://long",
    ]
