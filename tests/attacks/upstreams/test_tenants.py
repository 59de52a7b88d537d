"""Two tenants with upstreams of one name, and states and agents in the wrong hands."""

from collections.abc import Iterator
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
from tests.support.internet import Posted, ScriptedServer, error_answer, result_answer
from tests.support.issuers import Send

SECRETS = {"acme": "sk-of-acme-0123456789", "globex": "sk-of-globex-0123456789"}
FORM = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
ACCEPT_ANSWER = {"action": "accept", "content": {"ok": True}}


@pytest.fixture
def upstream_by_tenant(
    deployment: UpstreamDeployment,
) -> Iterator[dict[str, tuple[ScriptedServer, UpstreamUser, str]]]:
    """Yield an upstream `crm` of each tenant, each on its own server and with its own key."""
    by_tenant = {}
    for tenant, key in SECRETS.items():
        upstream = deployment.upstream_app.upstream(f"crm_{tenant}")
        upstream.answers["tools/list"] = result_answer({"tools": [tool(), tool(f"only_{tenant}")]})
        person = deployment.of(tenant, "crm")
        identity = person.register("crm", deployment.url(f"crm_{tenant}"), api_key=key)
        assert person.refresh(identity).status == 200
        deployment.offered(person, f"mcp_crm__only_{tenant}")
        by_tenant[tenant] = upstream, person, identity
    yield by_tenant
    for _, person, identity in by_tenant.values():
        assert person.ask("DELETE", f"{SERVERS}/{identity}").status == 204


def ask_before_each_call(upstream: ScriptedServer, url: str | None = None) -> None:
    """Let the server ask before each call, with a state of its own."""

    async def answer(posted: Posted, send: Send) -> None:
        params = posted.body["params"]
        if params.get("requestState") == "state-of-upstream":
            await result_answer(text_result("done with state"))(posted, send)
            return
        elicitation: dict[str, Any] = {"message": "Go on?", "requestedSchema": FORM}
        if url is not None:
            elicitation = {"mode": "url", "message": "Sign in", "url": url, "elicitationId": "e"}
        request = {"method": "elicitation/create", "params": elicitation}
        await result_answer(
            {
                "resultType": "input_required",
                "inputRequests": {"q": request},
                "requestState": "state-of-upstream",
            }
        )(posted, send)

    upstream.answers["tools/call"] = answer


def test_upstreams_of_one_name_in_two_tenants_stay_separate(
    deployment: UpstreamDeployment, upstream_by_tenant: Any
) -> None:
    """Each server sees only its own tenant's key and calls, and each tenant its own tools."""
    for tenant, other in (("acme", "globex"), ("globex", "acme")):
        upstream, person, _ = upstream_by_tenant[tenant]
        names = person.names()
        assert f"mcp_crm__only_{other}" not in names
        assert f"done by crm_{tenant}" in str(person.call("mcp_crm__act").json)
        assert person.call(f"mcp_crm__only_{other}").status == 404
        assert {request.headers["authorization"] for request in upstream.seen} == {
            f"Bearer {SECRETS[tenant]}"
        }
    bodies = [upstream_by_tenant["globex"][1].ask("GET", SERVERS).raw.body.decode()]
    assert "crm_acme" not in bodies[0]
    deployment.others_go_on()


@pytest.mark.requirement("A-14")
def test_a_14_the_callers_token_never_reaches_an_upstream(upstream_by_tenant: Any) -> None:
    """Requests to an upstream carry the key of the tenant's server and never the token."""
    for tenant in ("acme", "globex"):
        upstream, person, identity = upstream_by_tenant[tenant]
        assert person.refresh(identity).status == 200
        assert f"done by crm_{tenant}" in str(person.run("mcp_crm__act"))
        assert upstream.of("tools/call")
        sent = "".join(f"{request.headers}{request.body}" for request in upstream.seen)
        assert f"Bearer {SECRETS[tenant]}" in sent
        assert person.token not in sent
        assert all(part not in sent for part in person.token.split(".")[1:])


def test_a_request_state_is_accepted_only_for_its_own_call(
    deployment: UpstreamDeployment, upstream_by_tenant: Any
) -> None:
    """With another upstream, tool, argument, caller or tenant, no request is sent."""
    upstream, acme, _ = upstream_by_tenant["acme"]
    other, globex, _ = upstream_by_tenant["globex"]
    second, _, identity = deployment.registered("second")
    user = deployment.of("acme", "crm", "second")
    assert acme.refresh(identity).status == 200
    deployment.offered(user, "mcp_second__act")
    for server in (upstream, other, second):
        ask_before_each_call(server)
    try:
        first = user.run("mcp_crm__act", {"a": 1})["result"]
        assert first["resultType"] == "input_required", first
        [(key, request)] = first["inputRequests"].items()
        assert request["params"]["message"].startswith("crm: ")
        assert "state-of-upstream" not in str(first)
        more = {"requestState": first["requestState"], "inputResponses": {key: ACCEPT_ANSWER}}
        stranger = deployment.of("acme", "crm", "second", sub="mallory")
        counts = [len(server.of("tools/call")) for server in (upstream, other, second)]
        for who, name, arguments in (
            (user, "mcp_second__act", {"a": 1}),
            (user, "mcp_crm__only_acme", {"a": 1}),
            (user, "mcp_crm__act", {"a": 2}),
            (stranger, "mcp_crm__act", {"a": 1}),
            (globex, "mcp_crm__act", {"a": 1}),
        ):
            heard = who.run(name, arguments, **more)
            assert heard["error"]["code"] == -32602, (name, heard)
        sent = [
            request.body["params"].get("requestState")
            for server, count in zip((upstream, other, second), counts, strict=True)
            for request in server.of("tools/call")[count:]
        ]
        assert "state-of-upstream" not in sent
        assert not any(first["requestState"] == state for state in sent)
        assert "done with state" in str(user.run("mcp_crm__act", {"a": 1}, **more))
    finally:
        assert acme.ask("DELETE", f"{SERVERS}/{identity}").status == 204


@pytest.mark.parametrize(
    "url",
    [
        "http://evil.example.com/login",
        "javascript:alert(1)",
        "https://alice@evil.example.com/",
        "https://evil.example.com\\.good.example.com/",
        "https://evil.example.com/?access_token=1",
        "https://xn--80ak6aa92e.com\u202e/",
    ],
)
def test_misleading_elicitation_urls_are_not_shown(
    deployment: UpstreamDeployment, upstream_by_tenant: Any, url: str
) -> None:
    """The upstream's call fails, and the caller never sees the URL."""
    upstream, acme, _ = upstream_by_tenant["acme"]
    ask_before_each_call(upstream, url)
    heard = acme.run("mcp_crm__act")
    assert heard.get("result", {}).get("resultType") != "input_required", heard
    assert url not in str(heard)
    # 2025-11-25 has an error for it.
    pages = {"elicitations": [{"mode": "url", "message": "Sign in", "url": url}]}
    upstream.answers["tools/call"] = error_answer(-32042, "Sign in first", data=pages)
    heard = acme.run("mcp_crm__act")
    assert "names none that is safe" in str(heard)
    assert url not in str(heard)
    deployment.others_go_on()


def test_an_elicitation_url_is_shown_with_its_upstream_and_host(upstream_by_tenant: Any) -> None:
    upstream, acme, _ = upstream_by_tenant["acme"]
    page = "https://login.example.com/x"
    pages = {"elicitations": [{"mode": "url", "message": "Sign in", "url": page}]}
    upstream.answers["tools/call"] = error_answer(-32042, "Sign in first", data=pages)
    heard = acme.run("mcp_crm__act")["result"]
    assert heard["isError"] is True
    assert f"a page of crm first: {page} (at login.example.com)" in str(heard)
    ask_before_each_call(upstream, page)
    requests = acme.run("mcp_crm__act")["result"]["inputRequests"]
    [request] = requests.values()
    assert request["params"]["message"].startswith("crm: Sign in (The page is at login.example.com")


@pytest.mark.parametrize("method", ["sampling/createMessage", "roots/list", "tools/call"])
def test_sampling_and_roots_requests_need_permission_by_the_operator(
    upstream_by_tenant: Any, method: str
) -> None:
    """Without it, the requests of an upstream never reach the caller."""
    upstream, acme, _ = upstream_by_tenant["acme"]
    params = {"messages": [], "maxTokens": 9} if "sampling" in method else {}
    upstream.answers["tools/call"] = result_answer(
        {
            "resultType": "input_required",
            "inputRequests": {"q": {"method": method, "params": params}},
            "requestState": "s",
        }
    )
    heard = acme.run("mcp_crm__act")
    assert heard.get("result", {}).get("resultType") != "input_required", heard
    declared = upstream.of("tools/call")[-1].body["params"]["_meta"]
    assert not {"sampling", "roots"} & declared["io.modelcontextprotocol/clientCapabilities"].keys()


@pytest.mark.parametrize("mode", ["list", "search"])
def test_an_agent_can_call_only_tools_of_its_capabilities(
    deployment: UpstreamDeployment, upstream_by_tenant: Any, mode: str
) -> None:
    """`call_tool` with a guessed name does not reach other tools either."""
    _, acme, identity = upstream_by_tenant["acme"]
    created = acme.ask(
        "POST",
        AGENTS,
        {
            "name": f"agent_{mode}",
            "client_id": f"client-{mode}",
            "mode": mode,
            "capabilities": [{"ref": f"mcp:{identity}"}],
        },
    )
    assert created.status == 201, created
    try:
        agent = deployment.of("acme", "crm", client_id=f"client-{mode}", azp=f"client-{mode}")
        deployment.until(lambda: "mcp_good__act" not in agent.names())
        if mode == "search":
            assert set(agent.names()) == {"find_tools", "call_tool"}
        for name in ("mcp_good__act", "echo", "record_call", "mcp_crm__only_globex"):
            assert agent.call(name).status == 404
            if mode == "search":
                inner = agent.call("call_tool", {"name": name})
                assert inner.status == 404, inner
        if mode == "search":
            response = agent.call("find_tools", {"query": ""})
            assert "mcp_good" not in response.raw.body.decode()
            poor = deployment.of("acme", client_id=f"client-{mode}", azp=f"client-{mode}")
            refused = poor.call("call_tool", {"name": "mcp_crm__act"})
            assert refused.status == 403, refused
            own = agent.call("call_tool", {"name": "mcp_crm__act"})
            assert "done by crm_acme" in str(own.json)
            nested = {"name": "call_tool", "arguments": {"name": "mcp_good__act"}}
            assert agent.call("call_tool", nested).status == 404
    finally:
        assert acme.ask("DELETE", f"{AGENTS}/{created.json['id']}").status == 204
