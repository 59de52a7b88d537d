"""Hostile administrators of one tenant: what they register, change and read."""

import json
from typing import Any

import pytest

from tests.attacks.upstreams.conftest import (
    AGENTS,
    SERVERS,
    UpstreamDeployment,
    UpstreamUser,
    text_result,
    tool,
)
from tests.support.client import RestAnswer
from tests.support.internet import error_answer, result_answer

KEY, HEADER_VALUE = "sk-very-secret-0123456789", "header-secret-9876543210"
PUBLIC_URL = "https://mcp.example.com/mcp"

BODIES: dict[str, tuple[Any, str]] = {
    "command": ({"command": "sh"}, "command"),
    "command beside a url": ({"url": PUBLIC_URL, "command": "sh", "args": ["-c", "id"]}, "command"),
    "command as null": ({"url": PUBLIC_URL, "command": None}, "command"),
    "args": ({"url": PUBLIC_URL, "args": []}, "args"),
    "env": ({"url": PUBLIC_URL, "env": {"LD_PRELOAD": "x"}}, "env"),
    "another case": ({"url": PUBLIC_URL, "Command": "sh"}, "Command"),
    "nested": ({"url": PUBLIC_URL, "program": {"command": "sh"}}, "program"),
    "the transport": ({"url": PUBLIC_URL, "transport_type": "stdio"}, "transport_type"),
    "the transport's other name": ({"url": PUBLIC_URL, "transport": "stdio"}, "transport"),
    "trusted": ({"url": PUBLIC_URL, "trusted": True}, "trusted"),
    "a credential of the operator": ({"url": PUBLIC_URL, "credential": "crm"}, "credential"),
    "the tenant": ({"url": PUBLIC_URL, "tenant": "globex"}, "tenant"),
    "the id": ({"url": PUBLIC_URL, "id": "00000000-0000-0000-0000-000000000000"}, "id"),
    "the source": ({"url": PUBLIC_URL, "source": "configuration"}, "source"),
    "scopes": ({"url": PUBLIC_URL, "scopes": {"*": []}}, "scopes"),
    "allow": ({"url": PUBLIC_URL, "allow": ["sampling"]}, "allow"),
    "a file": ({"url": "file:///etc/passwd"}, "url"),
    "a socket": ({"url": "unix:///run/docker.sock"}, "url"),
    "plain http": ({"url": "http://mcp.example.com/mcp"}, "url"),
    "a line break in the url": ({"url": "https://mcp.example.com/\r\nX: y"}, "url"),
    "a tab in the url": ({"url": "https://mcp.exam\tple.com/"}, "url"),
    "a user in the url": ({"url": "https://a@mcp.example.com/"}, "url"),
    "a backslash in the url": ({"url": "https://mcp.example.com\\@127.0.0.1/"}, "url"),
    "another port": ({"url": "https://mcp.example.com:22/"}, "url"),
    "non-ASCII in the url": ({"url": "https://mcp.exämple.com/"}, "url"),
    "a fragment in the url": ({"url": "https://mcp.example.com/mcp#x"}, "url"),
}
HEADERS: dict[str, Any] = {
    "line break in a value": {"X-A": "v\r\nAuthorization: Bearer x"},
    "line feed in a value": {"X-A": "v\nX-B: w"},
    "NUL in a value": {"X-A": "v\0w"},
    "line break in a name": {"X-A\r\nX-B": "v"},
    "colon in a name": {"X-A:": "v"},
    "space in a name": {"X A": "v"},
    "empty name": {"": "v"},
    "non-ASCII name": {"X-Ä": "v"},
    "non-ASCII value": {"X-A": "vä"},
    "dotless i": {"Mcp-Sess\u0131on-Id": "v"},
    "Kelvin sign": {"\u212aeep-Alive": "v"},
    "nested value": {"X-A": {"a": "b"}},
    "several values": {"X-A": ["a", "b"]},
    **{
        name: {name: "value-of-it"}
        for name in (
            *("Authorization", "AUTHORIZATION", "Host", "Cookie", "Connection", "Keep-Alive"),
            *("Content-Length", "Content-Encoding", "Transfer-Encoding", "Te", "Trailer"),
            *("Upgrade", "Expect", "Proxy-Authorization", "Proxy-Anything", "Mcp-Session-Id"),
            *("mcp-method", "MCP-Param-X", "Traceparent", "Tracestate", "X-Forwarded-For"),
            *("Accept", "Accept-Encoding", "User-Agent", "Last-Event-ID", "Idempotency-Key"),
            *("Forwarded", "X_Forwarded_For", "Mcp_Session_Id", "Transfer_Encoding"),
        )
    },
}
BODIES |= {
    f"header: {name}": ({"url": PUBLIC_URL, "headers": headers}, "headers")
    for name, headers in HEADERS.items()
}


@pytest.fixture
def admin(deployment: UpstreamDeployment) -> UpstreamUser:
    return deployment.of("acme")


def registered(admin: UpstreamUser) -> set[str]:
    servers = admin.ask("GET", SERVERS).json["data"]
    return {server["name"] for server in servers if server["source"] == "api"}


@pytest.mark.parametrize("name", BODIES)
def test_invalid_registration_fields_are_refused_and_not_stored(
    admin: UpstreamUser, name: str
) -> None:
    """The server answers 400, names the field and does not repeat the value."""
    fields, field = BODIES[name]
    response = admin.ask(
        "POST", SERVERS, {"name": "plain", "url": PUBLIC_URL, "status": "disabled"}
    )
    path = f"{SERVERS}/{response.json['id']}"
    try:
        before = admin.ask("GET", path).json
        for response in (
            admin.ask("POST", SERVERS, {"name": "evil", **fields}),
            admin.ask("PATCH", path, fields),
        ):
            assert response.error == (400, "invalid_field"), response
            assert response.json["field"] == field
            assert "value-of-it" not in response.raw.body.decode()
        assert registered(admin) == {"plain"}
        assert admin.ask("GET", path).json == before
    finally:
        for server in admin.ask("GET", SERVERS).json["data"]:
            if server["source"] == "api":
                assert admin.ask("DELETE", f"{SERVERS}/{server['id']}").status == 204


INSIDE_URLS = {
    "loopback": "https://127.0.0.1/mcp",
    "loopback by name": "https://localhost/mcp",
    "loopback as a number": "https://2130706433/mcp",
    "loopback in hexadecimal": "https://0x7f.1/mcp",
    "IPv6 loopback": "https://[::1]/mcp",
    "IPv4 in IPv6": "https://[::ffff:127.0.0.1]/mcp",
    "NAT64": "https://[64:ff9b::7f00:1]/mcp",
    "private": "https://10.0.0.1/mcp",
    "link-local": "https://169.254.169.254/latest/meta-data",
    "metadata": "https://metadata.google.internal/computeMetadata/v1",
    "unspecified": "https://0.0.0.0/mcp",
    "shared": "https://100.64.0.1/mcp",
    "unique local": "https://[fd00::1]/mcp",
    "a name that means loopback": "https://localtest.invalid/mcp",
}


@pytest.mark.parametrize("name", INSIDE_URLS)
def test_internal_addresses_of_upstreams_are_never_requested(
    deployment: UpstreamDeployment, admin: UpstreamUser, name: str
) -> None:
    """The server refuses them at registration or at the first fetch, without details."""
    unknown_paths = len(deployment.upstream_app.unknown_paths)
    response = admin.ask(
        "POST", SERVERS, {"name": "inside", "url": INSIDE_URLS[name], "api_key": KEY}
    )
    if response.status == 400:
        assert response.json["field"] == "url"
        return
    assert response.status == 201
    path = f"{SERVERS}/{response.json['id']}"
    try:
        response = admin.ask("POST", f"{path}/refresh")
        assert response.error == (502, "upstream_unreachable")
        assert len(deployment.upstream_app.unknown_paths) == unknown_paths
        deployment.assert_others_are_answered()
    finally:
        assert admin.ask("DELETE", path).status == 204


def test_an_api_key_is_not_kept_when_the_url_changes_to_another_host(
    deployment: UpstreamDeployment,
) -> None:
    """A PATCH of the URL, also in several steps, does not send the key to another host."""
    upstream, admin, identity = deployment.registered(
        "mover", api_key=KEY, headers={"X-Secret": HEADER_VALUE}, description="d"
    )
    path = f"{SERVERS}/{identity}"
    try:
        assert admin.refresh(identity).status == 200
        assert upstream.of("tools/list")[-1].headers["authorization"] == f"Bearer {KEY}"
        elsewhere = "https://evil.example.com/mcp"
        for fields in (
            {"url": elsewhere},
            {"url": elsewhere, "api_key": None},
            {"url": elsewhere, "headers": None},
            {"url": elsewhere, "api_key": "a-new-key-of-mine", "description": None},
            {"url": deployment.url("mover").replace("http:", "https:")},
        ):
            response = admin.ask("PATCH", path, fields)
            assert response.error == (400, "invalid_field"), (fields, response)
            assert admin.ask("GET", path).json["url"] == deployment.url("mover")
        assert admin.refresh(identity).status == 200
        headers = upstream.of("tools/list")[-1].headers
        assert (headers["authorization"], headers["x-secret"]) == (f"Bearer {KEY}", HEADER_VALUE)
        moved = admin.ask("PATCH", path, {"url": elsewhere, "api_key": None, "headers": None})
        assert (moved.status, moved.json["api_key_set"], moved.json["header_names"]) == (
            200,
            False,
            [],
        )
        back = admin.ask("PATCH", path, {"url": deployment.url("mover")})
        assert (back.status, back.json["api_key_set"]) == (200, False)
        assert admin.refresh(identity).status == 200
        assert "authorization" not in upstream.of("tools/list")[-1].headers
        assert "x-secret" not in upstream.of("tools/list")[-1].headers
    finally:
        assert admin.ask("DELETE", path).status == 204


@pytest.mark.parametrize(
    "key", ["env:PATH-0123", "file:/etc/passwd", "secret:ANOTHER_ONE", "${env:HOME}"]
)
def test_api_keys_set_over_the_api_are_never_resolved_as_references(
    deployment: UpstreamDeployment, key: str
) -> None:
    """The operator's environment, files and secrets cannot be named over the API."""
    upstream, admin, identity = deployment.registered("refers", api_key=key, headers={"X-B": key})
    try:
        assert admin.refresh(identity).status == 200
        headers = upstream.of("tools/list")[-1].headers
        assert (headers["authorization"], headers["x-b"]) == (f"Bearer {key}", key)
    finally:
        assert admin.ask("DELETE", f"{SERVERS}/{identity}").status == 204


def test_secrets_of_an_upstream_are_never_shown(deployment: UpstreamDeployment, idp: Any) -> None:
    """The server may repeat them in texts, names, errors and answers; logs omit them too."""
    upstream = deployment.upstream_app.upstream("echo")
    whole_text = f"key {KEY} header {HEADER_VALUE}"
    upstream.answers["tools/list"] = result_answer(
        {
            "tools": [
                tool(description=whole_text, title=whole_text, _meta={"a": whole_text}),
                tool("b"),
            ]
        }
    )
    upstream.answers["tools/call"] = result_answer(
        text_result(whole_text) | {"structuredContent": {"a": whole_text}}
    )
    admin = deployment.of("acme", "echo")
    fields = {"api_key": KEY, "headers": {"X-Secret": HEADER_VALUE}}
    identity = admin.register("echo", deployment.url("echo"), **fields)
    path = f"{SERVERS}/{identity}"
    responses: list[RestAnswer] = []
    try:
        responses.append(admin.refresh(identity))
        assert responses[0].status == 200
        deployment.offered(admin, "mcp_echo__act")
        responses += [admin.ask("GET", SERVERS), admin.ask("GET", path), admin.ask("GET", "/tools")]
        responses.append(
            admin.ask("PATCH", path, {"description": "other", "api_key": KEY + "\r\n"})
        )
        responses.append(admin.ask("POST", SERVERS, {"name": "echo", "url": PUBLIC_URL, **fields}))
        responses.append(admin.call("mcp_echo__act"))
        bodies = [response.raw.body.decode() for response in responses]
        bodies.append(json.dumps(admin.rpc("tools/list", {})))
        bodies.append(json.dumps(admin.run("mcp_echo__b")))
        upstream.answers["tools/call"] = error_answer(-32603, whole_text, data={"a": whole_text})
        bodies.append(json.dumps(admin.run("mcp_echo__act")))
        upstream.answers["tools/call"] = result_answer(text_result(whole_text) | {"isError": True})
        bodies.append(json.dumps(admin.run("mcp_echo__act")))
        upstream.answers["tools/list"] = error_answer(-32603, whole_text, data=whole_text)
        bodies.append(admin.refresh(identity).raw.body.decode())
        upstream.answers["tools/list"] = result_answer({"tools": whole_text})
        bodies.append(admin.refresh(identity).raw.body.decode())
        bodies.append(admin.ask("GET", path).raw.body.decode())
        bodies.append(deployment.gate.log())
        for number, text in enumerate(bodies):
            assert KEY not in text, (number, text[:500])
            assert HEADER_VALUE not in text, (number, text[:500])
    finally:
        assert admin.ask("DELETE", path).status == 204


def test_objects_of_another_tenant_are_answered_like_unknown_ones(
    deployment: UpstreamDeployment,
) -> None:
    """Servers, agents and capabilities of another tenant get identical answers to unknown ones."""
    _, acme, identity = deployment.registered("private", api_key=KEY)
    globex = deployment.of("globex", "private")
    agent = acme.ask("POST", AGENTS, {"name": "a", "capabilities": [{"ref": f"mcp:{identity}"}]})
    assert agent.status == 201, agent
    unknown = "00000000-0000-4000-8000-000000000000"
    try:
        for method, path, fields in (
            ("GET", SERVERS, None),
            ("PATCH", SERVERS, {"status": "disabled"}),
            ("PATCH", SERVERS, {"url": "https://evil.example.com/mcp"}),
            ("DELETE", SERVERS, None),
            ("GET", AGENTS, None),
            ("PATCH", AGENTS, {"name": "b"}),
            ("DELETE", AGENTS, None),
        ):
            known_id = identity if path == SERVERS else agent.json["id"]
            theirs = globex.ask(method, f"{path}/{known_id}", fields)
            unowned = globex.ask(method, f"{path}/{unknown}", fields)
            assert theirs.error == (404, "not_found")
            assert theirs.raw.body == unowned.raw.body
        assert globex.refresh(identity).error == globex.refresh(unknown).error
        reaches = {"name": "thief", "capabilities": [{"ref": f"mcp:{identity}"}]}
        stolen = globex.ask("POST", AGENTS, reaches)
        assert (stolen.error, stolen.json["field"]) == ((400, "invalid_field"), "capabilities")
        assert identity not in globex.ask("GET", "/v1/capabilities").raw.body.decode()
        assert "private" not in globex.ask("GET", SERVERS).raw.body.decode()
        assert acme.ask("GET", f"{SERVERS}/{identity}").json["status"] == "active"
    finally:
        acme.ask("DELETE", f"{AGENTS}/{agent.json['id']}")
        assert acme.ask("DELETE", f"{SERVERS}/{identity}").status == 204


def test_management_routes_need_the_admin_scope(deployment: UpstreamDeployment) -> None:
    """Every route and method refuses a caller without the scope."""
    identity = "00000000-0000-4000-8000-000000000000"
    caller = UpstreamUser(deployment.gate, deployment.gate.token(scope="mcp:good"))
    for path in (SERVERS, f"{SERVERS}/{identity}", AGENTS, f"{AGENTS}/{identity}"):
        for method in ("GET", "POST", "PATCH", "DELETE"):
            response = caller.ask(method, path, {"command": "sh"} if method != "GET" else None)
            assert response.status in {403, 405}, (method, path, response)
    assert caller.ask("POST", f"{SERVERS}/{identity}/refresh").status == 403
