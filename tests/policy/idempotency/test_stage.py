"""A retried call gets the first outcome and runs its tool once (O12)."""

import asyncio
from typing import Any

import msgspec
import pytest

from gatepost import Outcome, ToolFailure
from gatepost.execution.failure import Failure
from gatepost.policy.idempotency.idempotency_record import KEPT_BYTES, digest_of
from gatepost.tools.calls.stage import Next
from gatepost.tools.context.client import InputNeeded, MissingCapability, ProtocolError
from gatepost_authz.errors import InsufficientScope
from tests.support.measuring import capture_logs, each
from tests.support.runners import FORM_REQUESTS, IdempotencyDeployment, text_or_failure

pytestmark = pytest.mark.requirement("O12")

MINUTE_S, DAY_S = 60, 86_400


LETS_GO: list[tuple[str, BaseException]] = [
    ("asks its client", InputNeeded(FORM_REQUESTS)),
    ("needs an abler client", MissingCapability({"elicitation": {}})),
    ("upstream is away", ToolFailure("upstream_unavailable", "Away.", retry_after=3)),
    ("upstream is busy", ToolFailure("rate_limit", "Busy.", retry_after=3)),
]


KEPT_FAILURES: list[tuple[str, BaseException, str]] = [
    ("not found", ToolFailure("not_found", "No such."), "not_found"),
    ("validation", ToolFailure("validation", "Odd.", field="what"), "validation"),
    ("denied by its own rule", ToolFailure("denied", "No."), "denied"),
    ("a timeout of its own making", ToolFailure("timeout", "Slow."), "timeout"),
    ("unforeseen", RuntimeError("hunter2"), "internal"),
    ("a cancelled future", asyncio.CancelledError(), "internal"),
]


PROTOCOL_ERROR = ProtocolError(7, "Upstream says no", {"why": "no"})


@pytest.mark.parametrize(("kind", "kept_s"), [("idempotency", DAY_S), ("correlation", MINUTE_S)])
async def test_a_retry_gets_the_first_outcome_for_a_time(kind: str, kept_s: int) -> None:
    """A day for an idempotency key, a minute for an episode's id; then it is another call."""
    deployment = IdempotencyDeployment()
    first, other = deployment.replica(), deployment.replica()
    assert text_or_failure(await first.call(kind=kind)) == "a 1"

    deployment.clock.now += kept_s - 1
    assert text_or_failure(await first.call(kind=kind)) == "a 1"
    assert text_or_failure(await other.call(kind=kind)) == "a 1"
    deployment.clock.now += 1
    assert text_or_failure(await other.call(kind=kind)) == "a 2"


async def test_an_operator_says_how_long_a_key_counts() -> None:
    """An episode's id counts a minute all the same."""
    deployment = IdempotencyDeployment()
    replica = deployment.replica(kept_s=600)
    assert text_or_failure(await replica.call()) == "a 1"
    deployment.clock.now += 599
    assert text_or_failure(await replica.call()) == "a 1"
    deployment.clock.now += 1
    assert text_or_failure(await replica.call()) == "a 2"
    assert text_or_failure(await replica.call(kind="correlation")) == "a 3"
    deployment.clock.now += 60
    assert text_or_failure(await replica.call(kind="correlation")) == "a 4"


async def test_a_call_without_a_key_runs_every_time() -> None:
    """Without a key nothing is promised, so nothing is stored."""
    replica = IdempotencyDeployment().replica()

    assert [text_or_failure(await replica.call(None)) for _ in range(3)] == ["a 1", "a 2", "a 3"]


EQUAL_ARGUMENTS = [
    (b'{"what":"a","number":1}', b'{"number":1.0,"what":"a"}'),
    (b'{"what":"a","number":1}', b' { "what" : "\\u0061",\n"number":10e-1 } '),
    (b'{"what":"a","number":0}', b'{"what":"a","number":-0.0}'),
    (b'{"what":"a","number":1e20}', b'{"what":"a","number":100000000000000000000}'),
    (b'{"what":"a","number":0.1}', b'{"what":"a","number":1.0e-1}'),
]
DIFFERING_ARGUMENTS = [
    (b'{"what":"a"}', b'{"what":"b"}'),
    (b'{"what":"a"}', b'{"what":"a","number":0}'),
    (b'{"what":"1"}', b'{"what":1}'),
    (b'{"n":9007199254740993}', b'{"n":9007199254740992}'),
    (b'{"l":[1,2]}', b'{"l":[2,1]}'),
    (b'{"l":null}', b"{}"),
    (b'{"n":true}', b'{"n":1}'),
    (b'{"n":1e400}', b'{"n":-1e400}'),
]


@pytest.mark.parametrize(("first", "other"), EQUAL_ARGUMENTS)
async def test_equivalent_arguments_have_the_same_digest(first: bytes, other: bytes) -> None:
    """Order of members, spelling of numbers and escapes are the client library's whim."""
    assert digest_of(first) == digest_of(other)
    replica = IdempotencyDeployment().replica()
    await replica.call(arguments=first)

    assert text_or_failure(await replica.call(arguments=other)) == "a 1"


@pytest.mark.parametrize(("first", "other"), DIFFERING_ARGUMENTS)
def test_different_arguments_have_different_digests(first: bytes, other: bytes) -> None:
    """Two integers that no double can tell apart are still two."""
    assert digest_of(first) != digest_of(other)


@pytest.mark.parametrize(
    "arguments", [b'{"n":' + b"9" * 5000 + b"}", b"[" * 5000 + b"]" * 5000, b"\xff"]
)
def test_unreadable_arguments_have_a_digest(arguments: bytes) -> None:
    """The digest works for anything that a tool's own parser accepts."""
    assert digest_of(arguments) == digest_of(arguments)


async def test_a_key_with_other_arguments_is_a_conflict() -> None:
    """An idempotency key is one call's, also while that runs."""
    deployment = IdempotencyDeployment()
    first, other = deployment.replica(), deployment.replica()
    running = asyncio.create_task(first.call(tool="act_held"))
    await deployment.entered.wait()
    for replica in (first, other):
        outcome = await replica.call(tool="act_held", arguments=b'{"what":"b"}')
        assert outcome.failure is not None
        assert text_or_failure(outcome) == "conflict"
        assert "other arguments" in outcome.failure.message
    deployment.gate.set()

    assert text_or_failure(await running) == "a 1"
    assert (
        text_or_failure(await other.call(tool="act_held", arguments=b'{"what":"b"}')) == "conflict"
    )
    assert deployment.effects == {"a": 1}


async def test_other_arguments_under_a_correlation_id_are_another_call() -> None:
    """A correlation id is an episode's, which calls a tool as often as it likes."""
    replica = IdempotencyDeployment().replica()
    await replica.call(kind="correlation")
    outcome = await replica.call(kind="correlation", arguments=b'{"what":"b"}')

    assert text_or_failure(outcome) == "b 1"


OTHER_CALLERS: list[dict[str, Any]] = [
    {"tenant_id": "globex"},
    {"issuer": "https://other.example.com"},
    {"subject": "bob"},
    {"subject_kind": "client"},
    {"actor": "an-agent"},
    {"client_id": "another-client"},
    {"client_id": None},
    {"tool": "put"},
    {"kind": "correlation"},
    {"key": "K"},
]


@each("other", OTHER_CALLERS, ids=lambda other: next(iter(other)))
async def test_idempotency_keys_of_callers_are_isolated(other: dict[str, Any]) -> None:
    """Tenant, issuer, kind, subject, client and tool are part of every key."""
    replica = IdempotencyDeployment().replica()
    await replica.call()

    assert text_or_failure(await replica.call(**other)) == "a 2"


async def test_a_refreshed_token_keeps_the_key() -> None:
    """What a token says beyond who calls may change between two attempts."""
    replica = IdempotencyDeployment().replica()
    await replica.call(token_id="1", expires_at=1_900_000_000)
    outcome = await replica.call(token_id="2", scopes=frozenset({"more"}))

    assert text_or_failure(outcome) == "a 1"


@pytest.mark.parametrize(
    ("tool", "arguments"), [("look", b'{"what":"a"}'), ("form", b'{"what":"GET a"}')]
)
@pytest.mark.parametrize("kind", ["idempotency", "correlation"])
async def test_a_read_only_call_is_not_replayed(tool: str, arguments: bytes, kind: str) -> None:
    """Its outcome is not stored, because a stale answer would be wrong."""
    deployment = IdempotencyDeployment()
    replica = deployment.replica()
    texts = [
        text_or_failure(await replica.call(tool=tool, arguments=arguments, kind=kind))
        for _ in range(2)
    ]

    assert texts[0] != texts[1]
    assert await deployment.records.tenant_data.count("acme") == {}


async def test_a_call_that_writes_is_coalesced() -> None:
    """The tool says so of each call, from its arguments."""
    replica = IdempotencyDeployment().replica()
    for _ in range(2):
        outcome = await replica.call(tool="form", arguments=b'{"what":"POST"}', kind="correlation")
        assert text_or_failure(outcome) == "POST 1"


@pytest.mark.parametrize(("case", "error"), LETS_GO, ids=[case for case, _ in LETS_GO])
async def test_a_retryable_failure_leaves_the_key_free(case: str, error: BaseException) -> None:
    """The same key is good for the same call, which then runs."""
    deployment = IdempotencyDeployment()
    replica = deployment.replica()
    deployment.raises = error
    if isinstance(error, ToolFailure):
        assert text_or_failure(await replica.call()) == f"{error.failure.kind}+"
    else:
        with pytest.raises(type(error)):
            await replica.call()
    deployment.raises = None

    assert text_or_failure(await replica.call()) == "a 2"


@pytest.mark.parametrize(
    ("case", "error", "kind"), KEPT_FAILURES, ids=[case for case, _, _ in KEPT_FAILURES]
)
async def test_the_failure_of_an_invoked_tool_is_its_stored_outcome(
    case: str, error: BaseException, kind: str
) -> None:
    """The tool may have had an effect, so it does not run again."""
    deployment = IdempotencyDeployment()
    replica, other = deployment.replica(), deployment.replica()
    deployment.raises = error
    with capture_logs() as logs:
        first = await replica.call()
    deployment.raises = None

    assert text_or_failure(first) == kind
    assert await replica.call() == first
    assert await other.call() == first
    assert deployment.effects == {"a": 1}
    assert len(logs) == (kind == "internal")


async def test_an_error_of_the_protocol_is_replayed_as_one() -> None:
    """The replay has the same code, message and data."""
    deployment = IdempotencyDeployment()
    deployment.raises = PROTOCOL_ERROR
    for replica in (deployment.replica(), deployment.replica()):
        with pytest.raises(ProtocolError) as raised:
            await replica.call()
        error = raised.value
        assert (error.code, error.message, error.data) == (7, "Upstream says no", {"why": "no"})

    assert deployment.effects == {"a": 1}


async def test_refused_calls_leave_the_key_free() -> None:
    """After a limit, a pending approval or a missing scope no tool has run."""
    refusals: list[Any] = [
        ToolFailure("rate_limit", "Too many.", retry_after=1),
        Outcome(failure=Failure("denied", "Rejected.")),
        InsufficientScope(("more",)),
    ]

    async def refuse(call: Any, tool: Any, arguments: Any, proceed: Next) -> Outcome:
        if not refusals:
            return await proceed(call, tool, arguments)
        refusal = refusals.pop(0)
        if isinstance(refusal, Outcome):
            return refusal
        raise refusal

    deployment = IdempotencyDeployment(stages=[refuse])
    replica = deployment.replica()
    assert text_or_failure(await replica.call()) == "rate_limit+"
    assert text_or_failure(await replica.call()) == "denied"
    with pytest.raises(InsufficientScope):
        await replica.call()

    assert text_or_failure(await replica.call()) == "a 1"
    assert text_or_failure(await replica.call()) == "a 1"


async def test_invalid_arguments_do_not_use_up_the_key() -> None:
    """A call with invalid arguments does not use up its key."""
    deployment = IdempotencyDeployment()
    replica = deployment.replica()
    assert text_or_failure(await replica.call(arguments=b'{"what":7}')) == "validation"

    assert text_or_failure(await replica.call()) == "a 1"


STRUCTURED_OUTCOME = Outcome(
    ({"type": "text", "text": "é"}, {"type": "image", "data": "AA==", "mimeType": "image/png"}),
    msgspec.Raw(b'{"big":123456789012345678901234567890,"f":1.50}'),
)


async def test_a_replay_is_the_first_answer_byte_for_byte() -> None:
    """Blocks of every kind, and structured values as the tool wrote them."""
    deployment = IdempotencyDeployment()
    deployment.answers = STRUCTURED_OUTCOME
    first = await deployment.replica().call()
    again = await deployment.replica().call()

    assert msgspec.json.encode(again) == msgspec.json.encode(first)
    # A field that is kept nowhere would be missing in a replay.
    assert Outcome.__struct_fields__ == (
        "content",
        "structured",
        "failure",
        "untrusted",
        "as_result",
    )


async def test_an_answer_is_cut_before_it_is_kept() -> None:
    """A retry gets what the first caller got."""
    deployment = IdempotencyDeployment(max_result_bytes=2_000)
    deployment.answers = Outcome(({"type": "text", "text": "y" * 3_000},))
    first, again = await deployment.replica().call(), await deployment.replica().call()

    assert len(text_or_failure(first)) < 2_000
    assert again == first


async def test_a_call_with_a_too_large_answer_does_not_run_again() -> None:
    """The first caller gets the answer; a retry learns that the call was carried out."""
    deployment = IdempotencyDeployment(max_result_bytes=2 * KEPT_BYTES)
    deployment.answers = Outcome(({"type": "text", "text": "y" * KEPT_BYTES},))
    first, again = await deployment.replica().call(), await deployment.replica().call()

    assert len(text_or_failure(first)) == KEPT_BYTES
    assert again.failure is not None
    assert text_or_failure(again) == "conflict"
    assert "carried out" in again.failure.message
    assert deployment.effects == {"a": 1}


@pytest.mark.parametrize(
    "content",
    [({"type": "text", "text": object()},), ({"type": "text", "text": "\ud800"},), ("no block",)],
    ids=["object", "surrogate", "no_block"],
)
async def test_an_unencodable_answer_is_an_internal_error_and_not_retried(content: Any) -> None:
    """Both get the same failure, and the tool does not run again."""
    deployment = IdempotencyDeployment()
    deployment.answers = Outcome(content)
    with capture_logs():
        first = await deployment.replica().call()
    again = await deployment.replica().call()

    assert text_or_failure(first) == "internal"
    assert again == first
    assert deployment.effects == {"a": 1}
