"""What callers hear of an upstream that fails, and of its JSON-RPC errors."""

from typing import Any

import msgspec
import pytest

from gatepost.tools.context.client import MissingCapability, ProtocolError
from gatepost.upstreams.calls.call_states import Errored
from gatepost.upstreams.calls.failures import MISSING_CAPABILITY, errored
from gatepost.upstreams.calls.health import FAILURES
from gatepost.upstreams.connection import ConnectionFailure, Era, FailureReason, UpstreamError
from gatepost.upstreams.upstream_server import Allowed, UpstreamServer
from tests.support.client_requests import call_with_responses, result_text
from tests.upstreams.calls.test_calls import (
    CRM,
    TOOL,
    Exchanged,
    ScriptedUpstreamCalls,
    UpstreamGate,
    calls_answered_by,
    definition,
    text_result,
)

FAILURES_HEARD: list[tuple[FailureReason, str]] = [
    ("unreachable", "crm is away."),
    ("unauthorized", "does not accept the credential"),
    ("overloaded", "crm is away."),
    ("session_lost", "crm is away."),
    ("timeout", "It may have been carried out"),
    ("invalid", "It may have been carried out"),
    ("outcome_unknown", "It is unknown whether crm carried out the call."),
]

NEEDS_FORMS = UpstreamError(
    -32021, "No forms", {"requiredCapabilities": {"elicitation": {"form": {}}}}
)
SERVER = UpstreamServer(id="1", tenant="acme", name="crm", allow=("sampling",))
TASKS = {"extensions": {"io.modelcontextprotocol/tasks": {}}}


def error_for_caller(required: Any, declared: dict[str, Any]) -> Exception:
    """Return the caller's error after the upstream requires these capabilities."""
    data = {"requiredCapabilities": required}
    return errored(SERVER, Errored(MISSING_CAPABILITY, "no", data), declared=declared)


@pytest.mark.parametrize("required", [{"sampling": {}}, TASKS])
def test_a_caller_learns_which_capability_is_missing(required: Any) -> None:
    """It gets the name if its own client lacks it, because declaring it would help."""
    missing = error_for_caller(required, {})

    assert isinstance(missing, MissingCapability)
    assert missing.required == required


@pytest.mark.parametrize(
    ("required", "declared"),
    [
        ({"sampling": {}}, {"sampling": {}}),  # declared already
        ({"roots": {}}, {}),  # the registration does not allow it
        ({"admin": {}}, {}),  # no capability of the protocol
        ("sampling", {}),
    ],
)
def test_an_unfulfillable_capability_demand_is_an_internal_error(
    required: Any, declared: Any
) -> None:
    """An upstream cannot make a client declare anything else."""
    error = error_for_caller(required, declared)

    assert isinstance(error, ProtocolError)
    assert error.code == -32603


@pytest.mark.parametrize(("reason", "sentence"), FAILURES_HEARD)
async def test_a_connection_failure_says_whether_the_call_may_have_run(
    reason: FailureReason, sentence: str
) -> None:
    """None is a 401 of Gatepost, and none suggests to repeat a call that may have run."""
    gate = UpstreamGate(calls_answered_by(ConnectionFailure(reason, "crm is away.")))

    response = await call_with_responses(gate.client, TOOL)

    assert response.status == 200
    assert response.json["result"]["isError"]
    assert sentence in result_text(response)


@pytest.mark.parametrize(
    ("era", "allow", "declared", "expected"),
    [
        (
            "modern",
            ("elicitation",),
            {},
            "-32021 This needs a client that can do: elicitation form",
        ),
        ("session", ("elicitation",), {}, "crm needs a client that can do: elicitation form."),
        # What is not allowed here, or was declared, is no lack of the client.
        ("modern", (), {}, "-32603 crm: No forms (code -32021)"),
        ("session", ("elicitation",), {"elicitation": {}}, "-32603 crm: No forms (code -32021)"),
    ],
)
async def test_a_client_without_the_needed_capability_gets_its_name(
    era: Era, allow: tuple[Allowed, ...], declared: dict[str, Any], expected: str
) -> None:
    """The answer is that of a local tool; a call of a session counts as made."""

    async def script(_: Exchanged) -> UpstreamError:
        return NEEDS_FORMS

    upstream = ScriptedUpstreamCalls(script, era=era)
    gate = UpstreamGate(upstream, server=msgspec.structs.replace(CRM, allow=allow))

    response = await call_with_responses(gate.client, TOOL, capabilities=declared)

    if "error" in response.json:
        error = response.json["error"]
        assert expected in f"{error['code']} {error['message']}"
    else:
        assert response.json["result"]["isError"]
        assert result_text(response) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [(-32602, -32602), (-32603, -32603), (17, 17), (-32601, -32603), (-32002, -32603)],
)
async def test_an_error_of_the_upstream_passes_with_code_and_message(
    code: int, expected: int
) -> None:
    """E2; codes that would say something of this server become internal errors."""
    gate = UpstreamGate(calls_answered_by(UpstreamError(code, "Bad row")))

    error = (await call_with_responses(gate.client, TOOL)).json["error"]

    assert error["code"] == expected
    assert "Bad row" in error["message"]


async def test_a_failure_names_the_page_to_open_first() -> None:
    data = {"elicitations": [{"url": "https://crm.example.com/x"}, {"url": "javascript:alert(1)"}]}
    gate = UpstreamGate(calls_answered_by(UpstreamError(-32042, "visit", data)))

    text = result_text(await call_with_responses(gate.client, TOOL))

    assert "https://crm.example.com/x" in text
    assert "javascript" not in text


async def test_an_answer_that_violates_its_schema_is_withheld() -> None:
    checked_definition = definition(outputSchema={"type": "object", "required": ["n"]})
    gate = UpstreamGate(
        calls_answered_by(text_result("a secret", structuredContent={})),
        definition=checked_definition,
    )

    response = await call_with_responses(gate.client, TOOL)

    assert response.json["result"]["isError"]
    assert "broke the protocol" in result_text(response)
    assert "a secret" not in result_text(response)


async def test_an_open_circuit_answers_at_once() -> None:
    upstream = calls_answered_by(text_result("ok"))
    upstream.unreachable = ConnectionFailure("unreachable", "crm refuses connections.")
    gate = UpstreamGate(upstream)
    for _ in range(FAILURES):
        await call_with_responses(gate.client, TOOL)
    upstream.unreachable = None

    response = await call_with_responses(gate.client, TOOL)

    assert "crm refuses connections." in result_text(response)
    assert upstream.exchanges == []
    assert gate.calls.health.numbers("acme", CRM.id).circuit == "open"


async def test_errors_of_tools_leave_the_circuit_closed() -> None:
    upstream = calls_answered_by(text_result("no", isError=True))
    gate = UpstreamGate(upstream)
    for _ in range(3 * FAILURES):
        assert (await call_with_responses(gate.client, TOOL)).json["result"]["isError"]

    numbers = gate.calls.health.numbers("acme", CRM.id)
    assert (numbers.circuit, numbers.failures, numbers.calls) == ("closed", 0, 3 * FAILURES)
