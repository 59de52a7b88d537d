"""Offers of a catalogue: whose scopes, names and effects they have, and whose URIs."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.tools.offers.offer import Effects, Offer, Tool, ToolFailure
from gatepost.tools.offers.offer_kinds import Prompt, ResourceOffer, Template
from gatepost.upstreams.assembly import FetchedLists, assembled
from gatepost.upstreams.catalogue import Catalogue, Section
from gatepost.upstreams.connection import ServerDescription
from gatepost.upstreams.definition_pins import Pins
from gatepost.upstreams.definitions import read_list
from gatepost.upstreams.server_offers import (
    GRACE_S,
    UNTRUSTED_EFFECTS,
    ServerOffers,
    is_chosen,
    scopes_of,
    server_offers,
)
from gatepost.upstreams.upstream_offers import merged
from gatepost.upstreams.upstream_server import UpstreamServer
from tests.upstreams.conftest import ALL_CAPABILITIES, NamedCalls, tool


def registered(name: str = "crm", **settings: Any) -> UpstreamServer:
    return UpstreamServer(id=f"id-{name}", tenant="acme", name=name, **settings)


def catalogue_of(server: UpstreamServer, **lists: Any) -> Catalogue:
    sections: dict[Section, list[Any]] = {"tools": lists.get("tools", [])}
    sections |= {
        section: lists.get(section, []) for section in ("resources", "templates", "prompts")
    }
    definitions = [
        listed_definition
        for section, items in sections.items()
        for listed_definition in read_list(section, items)[0]
    ]
    description = ServerDescription(
        era="modern",
        revision="2026-07-28",
        capabilities=lists.get("capabilities", ALL_CAPABILITIES),
    )
    listed = FetchedLists(description=description, definitions=tuple(definitions))
    return assembled(server, listed, Pins(), None, now=1.0)[0]


def offers_of(server: UpstreamServer, **lists: Any) -> ServerOffers:
    return server_offers(server, catalogue_of(server, **lists), NamedCalls())


def one_tool(server: UpstreamServer, definition: dict[str, Any]) -> Tool:
    (offer,) = offers_of(server, tools=[definition]).offers
    assert isinstance(offer, Tool)
    return offer


async def answer(offer: Offer, arguments: bytes) -> Any:
    """Return what a call of an offer gives to its server."""
    outcome = await offer.invoke(None, offer.check(arguments))  # type: ignore[arg-type]
    return outcome.structured


async def test_a_tool_is_offered_as_it_is() -> None:
    """The offer says where it comes from, for approvals and the audit record."""
    definition = tool(
        "get_user",
        title="Get a user",
        outputSchema={"type": "object"},
        _meta={"ui": {"resourceUri": "ui://a"}, "ui/resourceUri": "ui://a"},
        icons=[{"src": "https://example.com/a.png", "sizes": ["48x48"]}],
        execution={"taskSupport": "optional"},
    )
    server = registered(timeout_s=7.0)
    offered_here = catalogue_of(server, tools=[definition])
    offer = one_tool(server, definition)

    assert offer.name == "mcp_crm__get_user"
    assert (offer.title, offer.description) == ("Get a user", "Does get_user.")
    assert offer.input_schema == definition["inputSchema"]
    assert offer.output_schema == {"type": "object"}
    assert offer.meta == definition["_meta"]
    assert (offer.pack, offer.timeout_s) == ("mcp_crm", 7.0 + GRACE_S)
    assert offer.icons[0].src == "https://example.com/a.png"
    assert offer.origin is not None
    assert msgspec.structs.astuple(offer.origin)[:4] == (
        "id-crm",
        "crm",
        "get_user",
        offered_here.definitions[0].digest,
    )
    assert await answer(offer, b'{"q":"x"}') == ["tool", "crm", "get_user", {"q": "x"}]
    with pytest.raises(ToolFailure):
        offer.check(b'{"q":5}')


def test_a_read_only_hint_of_an_untrusted_server_has_no_effect() -> None:
    """The hint is shown and has no effect."""
    claims = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True}
    offer = one_tool(registered(), tool("delete_all", annotations=claims))

    assert offer.annotations.read_only_hint is True
    assert offer.effects == UNTRUSTED_EFFECTS
    assert (
        Effects(read_only=False, destructive=True, idempotent=False, open_world=True)
        == UNTRUSTED_EFFECTS
    )


@pytest.mark.parametrize(
    ("claims", "effects"),
    [
        ({}, UNTRUSTED_EFFECTS),
        ({"readOnlyHint": True}, Effects(read_only=True)),
        (
            {"destructiveHint": False, "idempotentHint": True, "openWorldHint": False},
            Effects(idempotent=True, open_world=False),
        ),
    ],
)
def test_the_hints_of_a_trusted_server_count(claims: dict[str, bool], effects: Effects) -> None:
    """Missing hints have the protocol's defaults."""
    assert one_tool(registered(trusted=True), tool("a", annotations=claims)).effects == effects


def test_a_server_cannot_hide_arguments_from_approvers() -> None:
    """Only a trusted server may mark an argument as secret."""
    schema = {"type": "object", "properties": {"to": {"type": "string", "x-gatepost-secret": True}}}

    assert one_tool(registered(), tool("pay", inputSchema=schema)).secret_arguments == ()
    trusted = one_tool(registered(trusted=True), tool("pay", inputSchema=schema))
    assert trusted.secret_arguments == (("to",),)


SCOPES = {"*": ("crm:use",), "delete_*": ("crm:admin", "crm:write")}


@pytest.mark.parametrize(
    ("scopes", "key", "needed"),
    [
        ({}, "get", {"mcp:crm"}),
        (SCOPES, "get", {"crm:use"}),
        (SCOPES, "delete_user", {"crm:use", "crm:admin", "crm:write"}),
        ({"get_*": ("crm:read",)}, "delete_user", {"mcp:crm"}),
        ({"get_*": ()}, "get_user", set()),
        ({"GET_*": ("crm:read",)}, "get_user", {"mcp:crm"}),
    ],
)
def test_all_matching_patterns_add_up(scopes: Any, key: str, needed: set[str]) -> None:
    """A tool that no pattern covers needs the server's own scope."""
    assert scopes_of(registered(scopes=scopes), key) == needed


@given(st.dictionaries(st.text(max_size=4), st.just(("a",))), st.text(min_size=1, max_size=6))
def test_more_matching_patterns_never_reduce_the_scopes(
    scopes: dict[str, tuple[str, ...]], key: str
) -> None:
    """The exception is the server's own scope, which a matching pattern replaces."""
    before = scopes_of(registered(scopes=scopes), key)
    after = scopes_of(registered(scopes={**scopes, "*": ("b",)}), key)

    assert before - {"mcp:crm"} <= after | {"a"}
    assert after


@pytest.mark.parametrize(
    ("patterns", "offers"),
    [
        ((), ["get_a", "get_secret", "put_a"]),
        (("get_*", "!get_secret"), ["get_a"]),
        (("!get_secret", "get_*"), ["get_a"]),
        (("!put_*",), ["get_a", "get_secret"]),
        (("none",), []),
    ],
)
def test_include_and_exclude_patterns_choose_tools(
    patterns: tuple[str, ...], offers: list[str]
) -> None:
    """An exclusion always wins."""
    keys = ["get_a", "get_secret", "put_a"]

    assert [key for key in keys if is_chosen(key, patterns)] == offers
    offered_here = offers_of(registered(tools=patterns), tools=[tool(key) for key in keys])
    assert [offer.origin.key for offer in offered_here.offers if offer.origin] == offers


def test_a_renamed_tool_keeps_its_key() -> None:
    """The server is called with its own name."""
    offer = one_tool(registered(renames={"getUser": "get_user"}), tool("getUser"))

    assert offer.name == "mcp_crm__get_user"
    assert offer.origin is not None
    assert offer.origin.key == "getUser"


@pytest.mark.parametrize("support", ["optional", "required"])
def test_tasks_need_the_servers_capability(support: Any) -> None:
    """A tool alone cannot declare them."""
    definition = tool("a", execution={"taskSupport": support})
    offered_here = offers_of(registered(), tools=[definition])
    assert isinstance(offered_here.offers[0], Tool)
    assert offered_here.offers[0].task_support == "forbidden"

    declared: tuple[dict[str, Any], ...] = (
        {"tools": {}, "tasks": {}},
        {"tools": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}},
    )
    for capabilities in declared:
        offered_here = offers_of(registered(), tools=[definition], capabilities=capabilities)
        assert isinstance(offered_here.offers[0], Tool)
        assert offered_here.offers[0].task_support == support


def test_a_server_may_make_a_task_of_any_call() -> None:
    """No tool says so in the list; a call becomes a task when the server makes it one."""
    offered_here = offers_of(
        registered(),
        tools=[tool("a")],
        capabilities={"tools": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}},
    )
    assert isinstance(offered_here.offers[0], Tool)
    assert (offered_here.offers[0].task_support, offered_here.offers[0].detaches) == (
        "optional",
        True,
    )


async def test_resources_templates_and_prompts_are_offered() -> None:
    """Resources under their own URI, `ui://` too."""
    offered_here = offers_of(
        registered(scopes={"greet": ("crm:talk",)}),
        resources=[{"uri": "ui://crm/map", "name": "map", "mimeType": "text/html;profile=mcp-app"}],
        templates=[{"uriTemplate": "crm://user/{id}", "name": "user"}],
        prompts=[{"name": "greet", "arguments": [{"name": "who", "required": True}]}],
    )
    page, user, greet = offered_here.offers
    assert isinstance(page, ResourceOffer)
    assert isinstance(user, Template)
    assert isinstance(greet, Prompt)

    assert page.mime_type == "text/html;profile=mcp-app"
    assert await answer(page, b'{"uri":"ui://crm/map"}') == [
        "resource", "crm", "ui://crm/map", "ui://crm/map",
    ]  # fmt: skip
    assert await answer(user, b'{"uri":"crm://user/7"}') == [
        "template", "crm", "crm://user/{id}", "crm://user/7",
    ]  # fmt: skip
    with pytest.raises(ToolFailure):
        user.check(b'{"uri":"crm://other/7"}')
    assert (greet.name, greet.scopes) == ("mcp_crm__greet", frozenset({"crm:talk"}))
    assert await answer(greet, b'{"who":"Al"}') == ["prompt", "crm", "greet", {"who": "Al"}]
    for bad in (b"{}", b'{"who":5}', b'{"who":"a","x":"b"}', b"[]"):
        with pytest.raises(ToolFailure):
            greet.check(bad)
    assert greet.completer is not None
    assert greet.completer.suggests
    assert greet.completer.scopes == greet.scopes


def test_a_server_without_completions_is_not_asked_for_them() -> None:
    """Gatepost does not declare them because of it, either."""
    offered_here = offers_of(
        registered(), prompts=[{"name": "greet"}], capabilities={"prompts": {}}
    )

    assert isinstance(offered_here.offers[0], Prompt)
    assert offered_here.offers[0].completer is not None
    assert not offered_here.offers[0].completer.suggests


@pytest.mark.parametrize(
    "lists",
    [
        {"templates": [{"uriTemplate": "crm://{a}{b}", "name": "x"}]},
        {"templates": [{"uriTemplate": "{+any}", "name": "x"}]},
        {"resources": [{"uri": "no uri", "name": "x"}]},
        {"tools": [tool("a", inputSchema={"type": "object", "properties": {
            "a": {"type": "string", "x-mcp-header": "Bad Header"}}})]},
    ],
)  # fmt: skip
def test_an_invalid_definition_is_left_out_alone(lists: Any) -> None:
    """It has a reason, and the other offers stay."""
    offered_here = offers_of(registered(), prompts=[{"name": "fine"}], **lists)

    assert [offer.name for offer in offered_here.offers] == ["mcp_crm__fine"]
    assert "cannot be offered" in offered_here.left_out[0].reason


def offers_of_notes() -> ServerOffers:
    """Return the offers of a server with a resource and a template."""
    return offers_of(
        registered("notes"),
        resources=[{"uri": "note://first", "name": "x"}],
        templates=[{"uriTemplate": "notes://all/{name}", "name": "x"}],
    )


def test_a_uri_belongs_to_the_first_server_that_offers_it() -> None:
    """The server that was registered first comes first."""
    uris = [{"uri": uri, "name": "x"} for uri in ("note://first", "notes://all/a", "crm://a")]
    first = offers_of(registered("first"), resources=uris)
    second = offers_of(registered("second"), resources=uris)
    offers, left_out = merged([offers_of_notes(), first, second])

    assert [(offer.key, offer.origin.server) for offer in offers if offer.origin] == [
        ("note://first", "notes"),
        ("notes://all/{name}", "notes"),
        ("crm://a", "first"),
    ]
    assert [(offer.key, offer.reason) for offer in left_out["id-second"]] == [
        ("note://first", "notes has this name or URI already"),
        ("notes://all/a", "notes has this name or URI already"),
        ("crm://a", "first has this name or URI already"),
    ]


@pytest.mark.parametrize(
    ("template", "is_offered"),
    [
        ("notes://all/x{name}", False),
        ("notes://all/{name}", False),
        ("notes://{+rest}", False),
        ("notes://some/{name}", True),
    ],
)
def test_a_template_does_not_match_uris_of_other_servers(template: str, is_offered: bool) -> None:
    """Neither a longer nor a shorter prefix matches another server's URIs."""
    offered_here = offers_of(registered(), templates=[{"uriTemplate": template, "name": "x"}])
    offers, _ = merged([offers_of_notes(), offered_here])

    assert (offered_here.offers[0] in offers) == is_offered


def test_the_later_of_two_servers_of_the_same_name_offers_nothing() -> None:
    """The reason names the conflict."""
    offered_here = offers_of(registered(), tools=[tool("a")])
    other = ServerOffers(
        msgspec.structs.replace(registered(), id="other"),
        offers_of(registered(), tools=[tool("b")]).offers,
        (),
    )
    offers, left_out = merged([offered_here, other])

    assert [offer.name for offer in offers] == ["mcp_crm__a"]
    assert "another server of this name" in left_out["other"][0].reason


@pytest.mark.parametrize("name", ["read_file", "workspace_read", "mcp_status", "../../etc", ""])
def test_a_tool_named_like_a_built_in_one_does_not_replace_it(name: str) -> None:
    """Every name has the prefix of its server."""
    offered_here = offers_of(registered(), tools=[tool(name)] if name else [tool("a")])

    assert all(offer.name.startswith("mcp_crm__") for offer in offered_here.offers)


def test_a_schema_is_compiled_once() -> None:
    """Compiling a thousand takes a second, and servers of one vendor share their schemas."""
    first, second = registered("one"), registered("two")
    checks = [one_tool(server, tool("get_user")).check for server in (first, second, first)]
    assert len(set(checks)) == 1
    other = one_tool(first, tool("get_user", inputSchema={"type": "object", "required": ["a"]}))
    assert other.check not in checks
    with pytest.raises(ToolFailure):
        other.check(b"{}")
