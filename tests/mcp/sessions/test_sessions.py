"""What a session remembers, and how it ends: at every process, and for good."""

import asyncio
from typing import Any

import msgspec
import pytest

from gatepost import CallContext, Pack
from gatepost.mcp.sessions.channel import revise
from gatepost.mcp.sessions.session import McpSessions
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.memory.records import MemorySessions
from gatepost.storage.sessions import SessionRecord
from gatepost.storage.shared_store import MemorySharedStore
from tests.support.endpoint import a_caller, message
from tests.support.endpoint_clients import EndpointPair

pack = Pack("talk")
LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


class SessionSignal:
    """Set when the waiting tool has started, and when it ended."""

    started: asyncio.Event
    ended: asyncio.Event


@pack.tool()
async def say(ctx: CallContext) -> str:
    """Log at every level."""
    for level in LEVELS:
        await ctx.client.log(level, {"at": level}, "talk")  # type: ignore[arg-type]
    return "said"


@pack.tool(timeout_s=20)
async def wait(ctx: CallContext, report: bool) -> str:
    """Wait until it is ended."""
    if report:
        await ctx.progress(1)
    SessionSignal.started.set()
    try:
        await asyncio.Event().wait()
    finally:
        SessionSignal.ended.set()
    return "never"


@pack.tool()
async def need_roots(ctx: CallContext) -> str:
    """Ask for the folders."""
    return str(await ctx.roots())


@pytest.fixture
async def replicas() -> EndpointPair:
    SessionSignal.started, SessionSignal.ended = asyncio.Event(), asyncio.Event()
    return await EndpointPair(pack.tools.values()).open()


async def message_levels(replicas: EndpointPair, client: Any) -> list[str]:
    """Make a call; return the levels of its messages."""
    live = replicas.post(client, message("tools/call", {"name": "say", "arguments": {}}))
    await live.over()
    if live.headers["content-type"] == "application/json":
        return []
    return [message["params"]["level"] for message in (await live.rest())[:-1]]


@pytest.mark.requirement("LG-05", "LG-02")
@pytest.mark.parametrize("level", LEVELS)
async def test_lg_05_the_session_remembers_the_level_at_every_process(
    replicas: EndpointPair, level: str
) -> None:
    """Set at one, it counts at the other, and `{}` is all that the answer says."""
    answer = await replicas.one.within(
        replicas.session, message("logging/setLevel", {"level": level})
    )

    assert answer.json["result"] == {}
    assert await message_levels(replicas, replicas.two) == LEVELS[LEVELS.index(level) :]


@pytest.mark.requirement("LG-05")
async def test_lg_05_until_a_level_is_set_a_session_gets_important_messages(
    replicas: EndpointPair,
) -> None:
    """Everything but debug messages; and the setting is one session's alone."""
    await replicas.one.within(replicas.session, message("logging/setLevel", {"level": "error"}))
    await replicas.open()

    assert await message_levels(replicas, replicas.one) == LEVELS[1:]


@pytest.mark.requirement("LG-05")
@pytest.mark.parametrize("level", ["loud", "", "DEBUG", None, 3])
async def test_lg_05_an_unknown_level_is_refused(replicas: EndpointPair, level: object) -> None:
    """The session keeps its level."""
    params = {} if level is None else {"level": level}

    answer = await replicas.one.within(replicas.session, message("logging/setLevel", params))

    assert answer.error == (200, -32602)
    assert await message_levels(replicas, replicas.two) == LEVELS[1:]


@pytest.mark.requirement("L-05")
@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2025-03-26"])
async def test_l_05_ping_gets_an_empty_result(version: str) -> None:
    """This holds at every process of the session."""
    replicas = await EndpointPair(pack.tools.values(), version=version).open()

    for client in (replicas.one, replicas.two):
        assert (await client.within(replicas.session, message("ping"))).json["result"] == {}


@pytest.mark.requirement("S-17", "S-16", "DE-13", "DE-06")
async def test_s_17_a_session_that_was_ended_is_gone_everywhere(replicas: EndpointPair) -> None:
    """
    The end gives 204, then every verb and message gets 404, also at a process that starts later.
    """
    assert await replicas.delete(replicas.one) == 204

    for client in (replicas.one, replicas.two):
        assert await replicas.ping(client) == 404
        assert await replicas.delete(client) == 404
        assert await replicas.tell(client, "notifications/initialized") == 404
        assert await replicas.answer(client, "x", result={}) == 404
        assert (await replicas.get(client).opened()).status == 404


@pytest.mark.requirement("S-17", "S-16")
async def test_s_16_the_end_of_a_session_outlives_its_process(replicas: EndpointPair) -> None:
    """A process that knows only the database refuses the id as well."""
    await replicas.delete(replicas.one)
    fresh = await EndpointPair(pack.tools.values(), records=replicas.one.records).open()
    fresh.session = replicas.session

    assert await fresh.ping(fresh.one) == 404


@pytest.mark.requirement("S-17", "CX-03")
@pytest.mark.parametrize("report", [True, False])
@pytest.mark.parametrize("at", ["the same process", "the other process"])
async def test_s_17_ending_a_session_stops_its_running_calls(
    replicas: EndpointPair, at: str, report: bool
) -> None:
    """The tool is cancelled and both streams close, at whichever process the client asks."""
    listening = await replicas.get(replicas.two).opened()
    live = replicas.call(replicas.one, "wait", report=report)
    await asyncio.wait_for(SessionSignal.started.wait(), 5)

    await replicas.delete(replicas.one if at == "the same process" else replicas.two)

    await asyncio.wait_for(SessionSignal.ended.wait(), 5)
    assert [message.get("method") for message in await live.rest()] == [
        "notifications/progress"
    ] * report
    assert await listening.rest() == []
    await live.over()
    await listening.over()


@pytest.mark.requirement("S-17", "S-20")
async def test_s_17_no_caller_ends_the_session_of_another(replicas: EndpointPair) -> None:
    """Another caller gets 404, and the session stays."""
    replicas.become(a_caller(subject="bob"))
    assert await replicas.delete(replicas.two) == 404
    replicas.become(a_caller())

    assert await replicas.ping(replicas.two) == 200


@pytest.mark.requirement("SEC-04", "S-14", "S-20", "S-13")
async def test_sec_04_session_ids_are_random_bound_and_no_credential(
    replicas: EndpointPair,
) -> None:
    """No two alike, none that can be made up or changed, and each one caller's alone."""
    first = replicas.session
    await replicas.open()
    forged = first[:-2] + ("AA" if first[-2:] != "AA" else "BB")
    refused = []
    for session in (forged, first[:40], "", "x" * 9000):
        replicas.session = session
        refused.append(await replicas.ping(replicas.one))

    assert first != replicas.session
    assert refused == [404] * 4


@pytest.mark.requirement("S-03", "RO-02")
@pytest.mark.parametrize(
    "method", ["notifications/initialized", "notifications/roots/list_changed", "unknown/one"]
)
async def test_s_03_notifications_are_accepted(replicas: EndpointPair, method: str) -> None:
    """202 at any process; nothing is kept of them, as roots are requested anew each time."""
    assert await replicas.tell(replicas.two, method) == 202


def test_a_client_that_acts_for_a_person_has_sessions_of_its_own() -> None:
    """No client can use the sessions of another client, nor those of the person it acts for."""
    sessions, initialize_body = (
        McpSessions(KeyRing.ephemeral()),
        b'{"protocolVersion":"2025-11-25"}',
    )
    callers = [a_caller(), a_caller(actor="bot"), a_caller(actor="other")]
    ids = [sessions.start(initialize_body, caller)[1].encode() for caller in callers]

    for caller in callers:
        matches = [sessions.find(identity, caller) is not None for identity in ids]
        assert matches == [own is caller for own in callers]


@pytest.mark.requirement("L-01", "L-08")
async def test_l_01_a_session_keeps_the_declared_client_capabilities() -> None:
    """Extensions and unknown capabilities are no reason to refuse the handshake."""
    replicas = EndpointPair(pack.tools.values())
    await replicas.open(sampling={"tools": {}}, extensions={"x/y": {}}, experimental={}, roots={})

    session = McpSessions(replicas.one.keyring, clock=replicas.one.clock).find(
        replicas.session.encode(), a_caller()
    )

    assert session is not None
    assert session.declared == {"sampling": {"tools": {}}, "roots": {}}


@pytest.mark.requirement("L-04", "E-01")
@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2025-11-25", {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}}),
        ("2025-06-18", {"elicitation": {}, "sampling": {}}),
        ("2025-03-26", {"sampling": {}}),
    ],
)
async def test_l_04_only_capabilities_of_the_negotiated_revision_count(
    version: str, expected: object
) -> None:
    """A client that declares more is asked for no more than its revision has."""
    replicas = EndpointPair(pack.tools.values(), version=version)
    await replicas.open(elicitation={"form": {}, "url": {}}, sampling={"tools": {}})

    session = McpSessions(replicas.one.keyring, clock=replicas.one.clock).find(
        replicas.session.encode(), a_caller()
    )

    assert session is not None
    assert session.declared == expected


async def test_concurrent_changes_of_a_session_are_all_kept() -> None:
    """Two processes that write one record keep each other's changes; an ended session stays so."""
    store, shared_store = MemorySessions(), MemorySharedStore().for_tenant("acme")
    session, _ = McpSessions(KeyRing.ephemeral()).start(
        b'{"protocolVersion":"2025-11-25"}', a_caller()
    )
    replace = msgspec.structs.replace

    def add(uri: str) -> Any:
        return lambda record: replace(record, subscriptions=(*record.subscriptions, uri))

    async def change_log_level(record: SessionRecord) -> None:
        await store.replace(session.key, replace(record, log_level="error"), expires_at=9e9)

    before = await store.get(session.key)
    await change_log_level(before)
    await asyncio.gather(*(revise(store, shared_store, session, add(str(n))) for n in range(4)))
    await revise(store, shared_store, session, add("4"), last_read=before)
    await revise(store, shared_store, session, lambda record: replace(record, ended=True))
    await revise(store, shared_store, session, lambda record: replace(record, ended=False))
    late = await revise(store, shared_store, session, lambda record: record, last_read=before)
    assert late.ended
    late = await revise(store, shared_store, session, add("5"), last_read=before)
    assert late.ended

    record = await store.get(session.key)
    assert (record.log_level, set(record.subscriptions)) == ("error", set("01234"))
    assert record.ended


async def test_a_store_outage_is_not_reported_as_a_lost_session(
    replicas: EndpointPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """404 would make the client throw its session away."""

    async def fails(key: bytes) -> SessionRecord:
        raise StoreUnavailable

    monkeypatch.setattr(replicas.one.records.for_tenant("acme").sessions, "get", fails)

    answer = await replicas.one.within(replicas.session, message("ping"))

    assert (answer.status, answer.json["error"]["code"]) == (503, -32603)
    assert int(answer.headers["retry-after"]) > 0


@pytest.mark.requirement("S-13", "S-14")
@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2025-03-26"])
async def test_s_13_s_14_only_the_handshake_returns_the_session_id(version: str) -> None:
    """The id is visible ASCII; later responses do not repeat it."""
    replicas = await EndpointPair(pack.tools.values(), version=version).open()
    answer = await replicas.two.within(replicas.session, message("ping"))

    assert all(0x21 <= ord(letter) <= 0x7E for letter in replicas.session)
    assert "mcp-session-id" not in answer.headers


@pytest.mark.requirement("S-15", "DE-25")
async def test_s_15_de_25_session_requests_without_a_session_id_are_refused(
    replicas: EndpointPair,
) -> None:
    """Setting a log level, GET and DELETE get 400 without a session."""
    level = message("logging/setLevel", {"level": "info"})

    assert (await replicas.one.send(level)).error == (400, -32600)
    for verb in ("GET", "DELETE"):
        assert (await replicas.one.send(b"", verb=verb)).error == (400, -32600)


@pytest.mark.requirement("S-18")
@pytest.mark.parametrize("version", ["2024-11-05", "2030-01-01", "nonsense"])
async def test_s_18_an_unserved_version_is_refused_within_a_session_too(
    replicas: EndpointPair, version: str
) -> None:
    """The answer is 400 in every negotiated revision."""
    named = ("mcp-protocol-version", version)

    assert (await replicas.one.within(replicas.session, message("ping"), named)).status == 400
    assert await replicas.ping(replicas.one) == 200


@pytest.mark.requirement("DE-24")
async def test_de_24_capabilities_are_those_of_the_handshake(replicas: EndpointPair) -> None:
    """Capabilities in the `_meta` of a session's request are ignored."""
    claimed = {"io.modelcontextprotocol/clientCapabilities": {"roots": {}}}
    params = {"name": "need_roots", "arguments": {}, "_meta": claimed}

    result = (await replicas.one.within(replicas.session, message("tools/call", params))).json[
        "result"
    ]

    assert result["isError"] is True
    assert "roots" in result["content"][0]["text"]
