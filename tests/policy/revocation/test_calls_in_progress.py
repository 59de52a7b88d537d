"""Callers who are revoked between the gate and the tool, or while a person decides."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from gatepost.policy.revocation.revocation_records import suspension
from gatepost.policy.revocation.watch import Revocations
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.revocations import RevocationRecord
from tests.policy.revocation.test_revocation_records import ordered_revocation
from tests.support.client import RawAnswer, modern_request, read_answer, request, session_call
from tests.support.issuers import Idp
from tests.support.measuring import eventually
from tests.support.replicas import WITHIN_S
from tests.support.server import Server, issuer_settings, running_server

pytestmark = pytest.mark.usefixtures("working_directory")

TABLE = {"acme": "acme", "globex": "globex"}
ALL_CALLERS = {"before": 1e12, "undated_until": 1e12}


@pytest.fixture(scope="module")
def replicas(idp: Idp) -> Iterator[Server]:
    settings = {"approvals": {"require": ["record_call"], "auto_approve": []}}
    with running_server(idp, [issuer_settings(idp, tenants=TABLE)], **settings) as replicas:
        yield replicas


@contextlib.contextmanager
def record(replicas: Server, revocation: RevocationRecord) -> Iterator[None]:
    """Keep a revocation record stored during a block; the server has read it at its start."""
    services = replicas.services
    replicas.run(services.records.revocations.put(revocation))
    eventually(lambda: revocation in services.revocations._snapshot.revocations, within=WITHIN_S)
    try:
        yield
    finally:
        replicas.run(services.records.revocations.delete(revocation.tenant, revocation.id))
        replicas.run(services.revocations.read_changes())


def unfinished_request(
    replicas: Server, path: str, fields: Any, body: bytes, token: str
) -> socket.socket:
    """Open a connection and send all of a request but its last byte."""
    head = [("Host", replicas.client.authority), ("Authorization", f"Bearer {token}"), *fields]
    head += [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    connection = socket.create_connection(("127.0.0.1", replicas.client.port), timeout=WITHIN_S)
    connection.sendall(request("POST", path, head, body)[:-1])
    return connection


REVOCATION_CASES = {
    "revoked": (ordered_revocation(subject="alice", tenant="acme"), 401, "invalid_token"),
    "suspended": (suspension("acme", now=1.0, by="root"), None, None),
}


@pytest.mark.requirement("CO1")
@pytest.mark.parametrize("case", REVOCATION_CASES)
@pytest.mark.parametrize("protocol", ["modern", "legacy", "rest"])
def test_a_slow_request_body_does_not_avoid_a_revocation(
    replicas: Server, protocol: str, case: str
) -> None:
    """The caller is revoked between its request head and its last byte, and no tool runs."""
    token = replicas.token()
    fields: list[tuple[str, str]] = []
    path, body = replicas.client.path, json.dumps({}).encode()
    if protocol == "modern":
        fields, body = modern_request("tools/call", {"name": "record_call", "arguments": {}})
    elif protocol == "legacy":
        fields, body = (
            [("Mcp-Session-Id", replicas.client.open(token))],
            session_call("record_call"),
        )
    else:
        path = "/tool/record_call/call"
    revocation = REVOCATION_CASES[case][0]
    if case == "revoked":
        revocation = changed_revocation(revocation, **ALL_CALLERS)
    with (
        replicas.nothing_runs(),
        unfinished_request(replicas, path, fields, body, token) as connection,
    ):
        # The head is judged by now: another request on a connection of its own was served.
        assert replicas.client.ask(token, "server/discover").status == 200
        with record(replicas, revocation):
            connection.sendall(body[-1:])
            answer = read_answer(connection)
    assert status_and_code(answer) == expected(protocol, case)


def changed_revocation(revocation: RevocationRecord, **changes: Any) -> RevocationRecord:
    return RevocationRecord(
        **{name: getattr(revocation, name) for name in revocation.__struct_fields__} | changes
    )


def expected(protocol: str, case: str) -> tuple[int, object]:
    """Return the expected error, by the kind of the revocation."""
    if case == "suspended":
        return (403, "tenant_suspended") if protocol == "rest" else (200, -31001)
    return (401, "invalid_token") if protocol == "rest" else (401, -31003)


def status_and_code(answer: RawAnswer) -> tuple[int, object]:
    """Return status and code of an answer."""
    error = json.loads(answer.body)["error"]
    return answer.status, error["code"] if isinstance(error, dict) else error


@pytest.mark.requirement("CO1")
@pytest.mark.parametrize("case", REVOCATION_CASES)
def test_waiting_requests_of_revoked_callers_are_withdrawn(replicas: Server, case: str) -> None:
    """Requests of the revoked callers are withdrawn; requests of other callers are not."""
    service = replicas.services.approvals
    for tenant in TABLE:
        answer = replicas.client.send(
            "POST", "/tool/record_call/call", body=b"{}", token=replicas.token(org_id=tenant)
        )
        assert (answer.status, json.loads(answer.body)["error"]) == (503, "approval_pending")
    assert len(replicas.run(service.waiting("acme"))) == 1

    with record(replicas, changed_revocation(REVOCATION_CASES[case][0], before=time.time())):
        eventually(lambda: not replicas.run(service.waiting("acme")), within=WITHIN_S)
        states = [request.state for request in replicas.run(service.history("acme"))]
        assert "withdrawn" in states
    assert len(replicas.run(service.waiting("globex"))) == 1


@pytest.mark.requirement("CO1")
def test_the_configuration_suspends_as_the_command_does(idp: Idp) -> None:
    """A reload ends waiting calls and withdraws their requests."""
    settings = {"approvals": {"require": ["record_call"]}}
    with running_server(idp, [issuer_settings(idp, tenants=TABLE)], **settings) as replicas:
        services, config = replicas.services, replicas.config
        service, token = services.approvals, replicas.token()
        other = replicas.token(org_id="globex")
        pending = replicas.client.send("POST", "/tool/record_call/call", body=b"{}", token=other)
        assert pending.status == 503
        fields = [("Mcp-Session-Id", replicas.client.open(token)), ("Accept", "application/json")]
        body = session_call("record_call")
        with unfinished_request(replicas, replicas.client.path, fields, body, token) as connection:
            connection.sendall(body[-1:])
            eventually(lambda: replicas.run(service.waiting("acme")), within=WITHIN_S)
            shut = msgspec.structs.replace(config.tenancy, suspended=("acme",))
            changed = msgspec.structs.replace(config, tenancy=shut)

            async def reload() -> None:
                services.apply(changed, replicas.loaded_packs)

            replicas.run(reload())
            assert status_and_code(read_answer(connection)) == (200, -31001)
        eventually(lambda: not replicas.run(service.waiting("acme")), within=WITHIN_S)
        assert [request.state for request in replicas.run(service.history("acme"))] == ["withdrawn"]
        assert len(replicas.run(service.waiting("globex"))) == 1


@pytest.mark.requirement("CO3")
def test_a_replica_that_has_read_no_revocations_admits_no_caller(idp: Idp) -> None:
    """The replica answers that it is not ready, and does not blame the caller."""

    async def changes(subjects: object) -> Any:
        raise StoreUnavailable("it is out")

    def forget(services: Any) -> None:
        services.revocations._changes = -1
        services.records.changes = changes

    with running_server(idp, [issuer_settings(idp, tenants=TABLE)], prepare=forget) as replicas:
        answer = replicas.client.ask(replicas.token(), "server/discover")
        ready = replicas.client.send("GET", "/readyz")
        assert isinstance(replicas.services.revocations, Revocations)

    assert (answer.status, ready.status) == (503, 503)
    assert answer.field("retry-after") is not None
    assert answer.field("www-authenticate") is None
