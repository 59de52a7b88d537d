"""A caller whose calls hang: its own calls fail, and those of its tenant's other callers go on."""

from collections.abc import Iterator

import pytest

from tests.attacks.upstreams.conftest import (
    UpstreamDeployment,
    UpstreamUser,
    begun_call,
    deployment_of,
    outcome_of,
    text_result,
    tool,
)
from tests.support.internet import Posted, result_answer, stall
from tests.support.issuers import Idp, Send

HANGING_TOOLS = [f"hang_{number}" for number in range(5)]
TIMEOUT_ERROR = (504, "timeout")


@pytest.fixture
def deployment(idp: Idp) -> Iterator[UpstreamDeployment]:
    """Serve a deployment whose good server has five tools that never answer."""
    with deployment_of(idp, good={"timeout_s": 0.5, "concurrency": 8}) as scene:
        upstream = scene.upstream_app.upstreams["good"]

        async def call(posted: Posted, send: Send) -> None:
            if posted.body["params"]["name"] in HANGING_TOOLS:
                await stall(posted)
            else:
                await result_answer(text_result("done by good"))(posted, send)

        upstream.answers["tools/call"] = call
        upstream.answers["tools/list"] = result_answer(
            {"tools": [tool(), *map(tool, HANGING_TOOLS)]}
        )
        admin = scene.of("acme")
        (benign,) = admin.ask("GET", "/v1/mcp-servers").json["data"]
        assert admin.refresh(benign["id"]).status == 200
        scene.offered(admin, "mcp_good__hang_4")
        yield scene


def user_named(deployment: UpstreamDeployment, name: str) -> UpstreamUser:
    return deployment.of("acme", sub=name)


def test_timeouts_of_one_caller_do_not_open_the_circuit(deployment: UpstreamDeployment) -> None:
    """Timeouts of several callers open it."""
    alice, bob = user_named(deployment, "alice"), user_named(deployment, "bob")
    for name in (*HANGING_TOOLS, *HANGING_TOOLS):
        assert outcome_of(alice.call(f"mcp_good__{name}")) == TIMEOUT_ERROR
    heard = bob.call("mcp_good__act")
    assert (heard.status, "done by good" in str(heard.json)) == (200, True), heard

    for number in range(5):
        slow = user_named(deployment, f"caller-{number}")
        assert outcome_of(slow.call("mcp_good__hang_0")) == TIMEOUT_ERROR
    refused = bob.call("mcp_good__act")
    assert refused.error == (503, "upstream_unavailable")
    assert "has not answered for" in refused.json["message"]
    assert deployment.of("globex").call("mcp_good__act").status == 200


def test_one_caller_cannot_use_all_concurrent_requests_of_an_upstream(idp: Idp) -> None:
    """One caller gets six of eight, and another caller's call runs at once."""
    with deployment_of(idp, good={"concurrency": 8}) as scene:
        upstream, alice, bob = (
            scene.upstream_app.upstreams["good"],
            user_named(scene, "alice"),
            user_named(scene, "bob"),
        )

        async def call(posted: Posted, send: Send) -> None:
            if posted.body["params"]["arguments"]:
                await stall(posted)
            else:
                await result_answer(text_result("done by good"))(posted, send)

        upstream.answers["tools/call"] = call
        hanging = [begun_call(alice, "mcp_good__act", b'{"hang":true}') for _ in range(20)]
        scene.until(lambda: len(upstream.of("tools/call")) >= 6)
        for _ in range(5):
            assert bob.call("mcp_good__act").status == 200
        assert len(upstream.of("tools/call")) == 6 + 5
        for open_call in hanging:
            open_call.close()
