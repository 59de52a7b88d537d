"""Asking a person: forms and pages, as an author writes them and as each revision says them."""

from typing import Any

import pytest

from gatepost import CallContext, Pack, UrlElicitation
from gatepost.mcp.projection import projected
from gatepost.tools.context.client import InputRequest, MissingCapability
from tests.mcp import fixture_tools
from tests.support.client_requests import (
    Trip,
    accepted_form,
    call_with_responses,
    input_requests_of,
    next_round,
    result_text,
)
from tests.support.endpoint import EndpointClient, a_caller
from tests.support.measuring import each

pack = Pack("people")
LINKED_CALLERS: set[tuple[str, ...]] = set()
PAGE = "https://example.com/connect"


@pack.tool()
async def plan(ctx: CallContext) -> str:
    """Plan a trip."""
    answered = await ctx.ask("Where shall we go?", Trip, key="trip")
    return f"{answered.action} {answered.accepted} {answered.content!r}"


@pack.tool()
async def connect(ctx: CallContext) -> str:
    """Work with an account that has to be linked first."""
    if ctx.caller.principal_key not in LINKED_CALLERS:
        answered = await ctx.ask_url("Link your account", PAGE, key="link")
        if answered.action != "accept":
            return "not linked"
        if ctx.caller.principal_key not in LINKED_CALLERS:
            await ctx.ask_url("Link your account, then go on", PAGE, key="again")
    return f"linked for {ctx.caller.subject}"


@pytest.fixture
def client() -> EndpointClient:
    LINKED_CALLERS.clear()
    return EndpointClient([*pack.tools.values(), *fixture_tools.question_pack.tools.values()])


DECLARED_CAPABILITIES = [
    # declared                           forms  pages
    ({}, False, False),
    ({"elicitation": {}}, True, False),
    ({"elicitation": {"form": {}}}, True, False),
    ({"elicitation": {"url": {}}}, False, True),
    ({"elicitation": {"form": {}, "url": {}}}, True, True),
    ({"elicitation": []}, False, False),
]


@pytest.mark.requirement("E-01")
@pytest.mark.parametrize(("declared", "forms", "pages"), DECLARED_CAPABILITIES)
async def test_e_01_only_a_declared_mode_is_asked(
    client: EndpointClient, declared: Any, forms: bool, pages: bool
) -> None:
    """An empty capability means forms; the error names the missing mode."""
    form = await call_with_responses(client, "plan", capabilities=declared)
    page = await call_with_responses(client, "connect", capabilities=declared)

    for response, possible in ((form, forms), (page, pages)):
        assert (response.status == 200) is possible
        assert possible or response.error == (400, -32021)


@pytest.mark.requirement("E-02")
async def test_e_02_a_form_is_a_message_and_flat_fields(client: EndpointClient) -> None:
    """The author's type is written as a schema that every client can show."""
    request = input_requests_of(await call_with_responses(client, "plan"))["trip"]

    assert request["method"] == "elicitation/create"
    assert request["params"] == {
        "mode": "form",
        "message": "Where shall we go?",
        "requestedSchema": {
            "type": "object",
            "properties": {
                "where": {
                    "type": "string",
                    "title": "Where to?",
                    "minLength": 2,
                    "maxLength": 40,
                },
                "day": {"type": "string", "title": "Day", "format": "date"},
                "people": {
                    "type": "integer",
                    "title": "People",
                    "minimum": 1,
                    "maximum": 9,
                    "default": 2,
                },
                "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
                "meals": {
                    "type": "array",
                    "title": "Meals",
                    "items": {"type": "string", "enum": ["lunch", "dinner"]},
                    "maxItems": 2,
                    "default": ["lunch"],
                },
                "note": {"type": "string", "title": "Note"},
            },
            "required": ["where", "day"],
        },
    }


@pytest.mark.requirement("E-05")
async def test_e_05_a_page_is_a_message_and_an_address(client: EndpointClient) -> None:
    """It has no id, unlike in 2025-11-25."""
    request = input_requests_of(await call_with_responses(client, "connect"))["link"]["params"]

    assert request == {"mode": "url", "message": "Link your account", "url": PAGE}


ADDRESSES = [
    *(
        "http://example.com/x",
        "ftp://example.com/",
        "javascript:alert(1)",
        "/connect",
        "https:///x",
    ),
    *("https://alice:secret@example.com/", "https://alice@example.com/", "https://exämple.com/"),
    *(
        "https://evil.example\\.example.com/",
        "https://example.com/ x",
        "https://example.com/?access_token=1",
        "",
        "https://e.com/\n",
    ),
    *("https://example.com/?api_key=1", "http://localhost.example.com/", "data:text/html,x"),
]


@pytest.mark.requirement("E-06")
@each("url", ADDRESSES)
def test_e_06_an_address_is_https_and_carries_no_secret(url: str) -> None:
    """A person who sees the address in a log gains no access by it."""
    with pytest.raises(ValueError, match="page"):
        UrlElicitation("Open this", url)


@pytest.mark.requirement("E-06")
@pytest.mark.parametrize(
    "url",
    [PAGE, "http://localhost:8000/x", "http://127.0.0.1/x", "http://[::1]:9/x", PAGE + "?s=1"],
)
def test_e_06_a_page_on_loopback_may_use_http(url: str) -> None:
    """The exception only serves developers."""
    assert UrlElicitation("Open this", url).request.params["url"] == url


@pytest.mark.requirement("E-08", "E-09", "E-14")
async def test_e_08_e_14_a_finished_page_counts_only_for_its_own_caller(
    client: EndpointClient,
) -> None:
    """Accepting the page proves nothing, and another caller's finished page does not help."""
    first = await call_with_responses(client, "connect")
    LINKED_CALLERS.add(a_caller(subject="bob").principal_key)
    second = await next_round(client, "connect", first, {"link": {"action": "accept"}})
    assert list(input_requests_of(second)) == ["again"]

    LINKED_CALLERS.add(client.caller.principal_key)
    third = await next_round(client, "connect", second, {"again": {"action": "accept"}})
    assert result_text(third) == "linked for alice"


@pytest.mark.requirement("E-09")
async def test_e_09_an_answer_is_bound_to_the_caller_that_was_asked(client: EndpointClient) -> None:
    """The request state of one caller is refused for another."""
    first = await call_with_responses(client, "plan")
    client.caller = a_caller(subject="bob")

    response = await next_round(
        client, "plan", first, {"trip": accepted_form(where="Rome", day="2026-10-01")}
    )

    assert response.error == (400, -32602)


@pytest.mark.requirement("E-10")
async def test_e_10_a_missing_scope_is_challenged_and_not_elicited() -> None:
    """The challenge sends the client to the issuer."""
    guarded = Pack("guarded")
    guarded.tool(scopes={"admin:all"})(connect)
    response = await call_with_responses(EndpointClient(guarded.tools.values()), "connect")

    assert response.status == 403
    assert 'scope="admin:all"' in response.headers["www-authenticate"]


@pytest.mark.requirement("E-11")
def test_e_11_a_tool_never_holds_the_clients_token() -> None:
    """No tool can pass the client's token to a third party."""
    fields = {*CallContext.__struct_fields__, *type(a_caller()).__struct_fields__}

    assert {name for name in fields if "token" in name} == {"token_id"}


@pytest.mark.requirement("E-12")
@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"action": "decline"}, "decline False None"),
        ({"action": "cancel"}, "cancel False None"),
        ({"action": "decline", "content": {"where": "Rome"}}, "decline False None"),
    ],
)
async def test_e_12_the_tool_sees_a_declined_or_cancelled_form(
    client: EndpointClient, answer: Any, text: str
) -> None:
    """The tool gets no content, even if the client sent some."""
    first = await call_with_responses(client, "plan")

    assert result_text(await next_round(client, "plan", first, {"trip": answer})) == text


@pytest.mark.requirement("E-13")
async def test_e_13_an_accepted_form_is_checked_and_typed(client: EndpointClient) -> None:
    """Defaults, dates and choices have the author's types; unknown fields are dropped."""
    first = await call_with_responses(client, "plan")
    answer = accepted_form(where="Rome", day="2026-10-01", meals=["dinner"], stranger=1)

    text = result_text(await next_round(client, "plan", first, {"trip": answer}))

    assert "where='Rome', day=datetime.date(2026, 10, 1), people=2" in text.replace("Trip(", "")


@pytest.mark.requirement("E-13")
@pytest.mark.parametrize(
    "content",
    [
        {"where": "Rome"},
        {"where": "R", "day": "2026-10-01"},
        {"where": "Rome", "day": "tomorrow"},
        {"where": "Rome", "day": "2026-10-01", "people": 10},
        {"where": "Rome", "day": "2026-10-01", "people": "2"},
        {"where": "Rome", "day": "2026-10-01", "color": "green"},
        {"where": "Rome", "day": "2026-10-01", "meals": ["breakfast"]},
    ],
)
async def test_e_13_an_answer_that_does_not_fit_the_form_is_asked_again(
    client: EndpointClient, content: Any
) -> None:
    """The client is asked again before the tool sees an answer."""
    first = await call_with_responses(client, "plan")
    second = await next_round(client, "plan", first, {"trip": accepted_form(**content)})

    assert list(input_requests_of(second)) == ["trip"]


@pytest.mark.requirement("E-13")
async def test_e_13_an_answer_that_only_the_authors_type_refuses_fails_the_call(
    client: EndpointClient,
) -> None:
    """The failure is a sentence that a model can act on, without the value."""
    first = await call_with_responses(client, "plan")
    answer = accepted_form(where="nowhere", day="2026-10-01")
    response = await next_round(client, "plan", first, {"trip": answer})

    assert response.json["result"]["isError"] is True
    assert result_text(response) == "The answer cannot be used: Value error, that is no place."


@pytest.mark.requirement("E-16")
async def test_e_16_an_identity_in_the_answer_does_not_change_the_caller(
    client: EndpointClient,
) -> None:
    """The tool's caller is that of the token."""
    LINKED_CALLERS.add(client.caller.principal_key)
    answers = {"link": {"action": "accept", "content": {"user": "bob"}, "sub": "bob"}}
    response = await call_with_responses(client, "connect", inputResponses=answers)

    assert result_text(response) == "linked for alice"


URL_REQUEST = InputRequest("elicitation/create", {"mode": "url", "message": "m", "url": PAGE})


@pytest.mark.requirement("E-05")
def test_e_05_url_elicitation_is_written_for_each_revision() -> None:
    """2025-11-25 has an id; the earlier revisions have no URL elicitation."""
    assert projected(URL_REQUEST, "2026-07-28") == URL_REQUEST.params
    assert projected(URL_REQUEST, "2025-11-25", elicitation_id="e-1") == {
        **URL_REQUEST.params,
        "elicitationId": "e-1",
    }
    for revision in ("2025-06-18", "2025-03-26"):
        with pytest.raises(MissingCapability):
            projected(URL_REQUEST, revision)
