"""The audit records of calls over HTTP."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from gatepost.audit.batches import RingLinker
from gatepost.audit.record import AuditRecord, read
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.backends import open_records
from tests.audit.conftest import AUDITED_TOOLS
from tests.support.client import RestClient
from tests.support.issuers import Idp
from tests.support.measuring import each
from tests.support.server import Server, issuer_settings, running_server

PASSWORD = "correct-horse-battery-staple"


class AuditedServer:
    """A server and what is on its record; each test has a tenant of its own."""

    def __init__(self, server: Server, url: str) -> None:
        self.gatepost, self.url = server, url

    def records(self, tenant: str) -> list[AuditRecord]:
        """Return all records of a tenant, read by another process than the server."""

        async def work() -> list[AuditRecord]:
            records = await open_records(self.url)
            audit_store = records.open_audit(RingLinker(KeyRing.ephemeral()))
            rows = await audit_store.tenant_log(tenant).chain(1).rows(0, 1000)
            await records.aclose()
            return [read(row) for row in rows]

        return asyncio.run(work())


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuditedServer]:
    folder = tmp_path_factory.mktemp("audit")
    url = f"sqlite:///{folder}/records.db"
    settings: dict[str, Any] = {
        "storage": {"database": url},
        "tools": {"load": [AUDITED_TOOLS]},
        "tenancy": {"create_on_first_use": True},
        "scopes": {"obtainable": ["files:write"]},
        "audit": {"max_argument_bytes": 200},
    }
    with Idp() as idp, running_server(idp, [issuer_settings(idp)], **settings) as server:
        yield AuditedServer(server, url)


Ask = Callable[[Server, str], object]

CALL_ENDINGS: dict[str, tuple[Ask, dict[str, Any]]] = {
    # what is asked, and what its record says
    "success": (
        lambda server, token: server.client.call(token, "write", {"text": "hello"}),
        {"kind": "call", "tool": "write", "outcome": "success", "arguments": '{"text": "hello"}'},
    ),
    "reading": (
        lambda server, token: server.client.call(token, "look"),
        {"kind": "call", "tool": "look", "outcome": "success"},
    ),
    "failure": (
        lambda server, token: server.client.call(token, "refuse", {"why": "rain"}),
        {"kind": "call", "tool": "refuse", "outcome": "denied", "reason": "Not today: rain"},
    ),
    "crash": (
        lambda server, token: server.client.call(token, "crash"),
        {"kind": "call", "tool": "crash", "outcome": "internal"},
    ),
    "timeout": (
        lambda server, token: server.client.call(token, "linger"),
        {"kind": "call", "tool": "linger", "outcome": "timeout"},
    ),
    "unknown tool": (
        lambda server, token: server.client.call(token, "nothing"),
        {"kind": "refusal", "tool": "", "outcome": "unknown", "reason": "nothing"},
    ),
    "too few scopes": (
        lambda server, token: server.client.call(token, "scoped"),
        {"kind": "refusal", "tool": "scoped", "outcome": "insufficient_scope"},
    ),
    "wrong arguments": (
        lambda server, token: server.client.call(token, "write", {"text": 7}),
        {"kind": "refusal", "tool": "write", "outcome": "validation", "arguments": '{"text": 7}'},
    ),
    "resource": (
        lambda server, token: server.client.ask(
            token, "resources/read", {"uri": "audited://log/monday"}
        ),
        {"kind": "call", "offer": "document", "outcome": "success"},
    ),
    "REST": (
        lambda server, token: RestClient(server, token).call("write", {"text": "hello"}),
        {"kind": "call", "tool": "write", "outcome": "success"},
    ),
    "REST, unknown": (
        lambda server, token: RestClient(server, token).call("nothing"),
        {"kind": "refusal", "outcome": "unknown"},
    ),
    "REST, of another tenant": (
        lambda server, token: RestClient(server, token).call(
            "write", {"text": "x"}, ("X-Octopus-Tenant-Id", "globex")
        ),
        {"kind": "tenant_mismatch", "outcome": "refused"},
    ),
}


@pytest.mark.requirement("AU3")
@each("name", CALL_ENDINGS)
def test_every_outcome_of_a_call_is_recorded_once(audited: AuditedServer, name: str) -> None:
    """The record exists when the answer arrives, with the caller and the outcome."""
    ask, expected = CALL_ENDINGS[name]
    tenant = f"t{[*CALL_ENDINGS].index(name)}"
    token = audited.gatepost.token(org_id=tenant, sub="alice", name="Alice", scope="files:read")
    ask(audited.gatepost, token)
    records = audited.records(tenant)

    assert len(records) == 1
    stated = msgspec.structs.asdict(records[0]) | dict(records[0].private)
    assert {field: stated[field] for field in expected} == expected
    assert records[0].caller is not None
    assert (records[0].caller.subject, records[0].subject_kind) == ("alice", "user")


@pytest.mark.parametrize("method", ["tools/list", "resources/list", "prompts/list"])
def test_list_requests_are_not_recorded(audited: AuditedServer, method: str) -> None:
    """Records of lists would bury the records of calls."""
    audited.gatepost.client.ask(audited.gatepost.token(org_id="looker"), method)

    assert audited.records("looker") == []


@pytest.mark.requirement("AU3")
@pytest.mark.parametrize(
    ("tool", "arguments", "outcome"),
    [("write", {"text": "once"}, "success"), ("create", {}, "conflict")],
)
def test_a_retry_is_on_record_as_a_replay(
    audited: AuditedServer, tool: str, arguments: dict[str, str], outcome: str
) -> None:
    """The tool ran once, and the record says which of the two calls it ran for."""
    tenant = f"again-{tool}"
    token = audited.gatepost.token(org_id=tenant)
    for _ in range(2):
        RestClient(audited.gatepost, token).call(tool, arguments, ("Idempotency-Key", "k1"))
    records = audited.records(tenant)

    assert [(record.outcome, record.retry, record.replayed) for record in records] == [
        (outcome, "idempotency", False),
        (outcome, "idempotency", True),
    ]


def test_a_nested_call_has_its_own_record(audited: AuditedServer) -> None:
    """The nested call is recorded first, and both records have the same request id."""
    audited.gatepost.client.call(audited.gatepost.token(org_id="within"), "both")
    records = audited.records("within")

    assert [(record.tool, record.depth, record.outcome) for record in records] == [
        ("write", 1, "success"),
        ("both", 0, "success"),
    ]
    assert len({record.request_id for record in records}) == 1


SECRETS: dict[str, tuple[str, dict[str, Any]]] = {
    "in its place": ("unlock", {"token": PASSWORD, "safe": "front"}),
    "elsewhere too": ("unlock", {"token": PASSWORD, "safe": f"the {PASSWORD} one"}),
    "not as the schema allows": ("unlock", {"token": [PASSWORD], "safe": "front"}),
    "with a field too many": ("unlock", {"token": PASSWORD, "safe": "front", "x": PASSWORD}),
    "of a tool that is not there": ("unlocked", {"token": PASSWORD}),
    "over the cut": ("unlock", {"safe": "x" * 175 + PASSWORD, "token": PASSWORD}),
}


@pytest.mark.requirement("AU9")
@pytest.mark.parametrize("name", SECRETS)
def test_records_contain_no_secret(audited: AuditedServer, name: str) -> None:
    """No part of a secret is left, also where long arguments are truncated."""
    tool, arguments = SECRETS[name]
    tenant = f"s{[*SECRETS].index(name)}"
    audited.gatepost.client.call(audited.gatepost.token(org_id=tenant), tool, arguments)
    (record,) = audited.records(tenant)
    text = repr(record)

    assert not any(PASSWORD[at : at + 8] in text for at in range(len(PASSWORD) - 8))


def test_long_arguments_are_cut(audited: AuditedServer) -> None:
    """The record keeps the configured length and a mark for the rest."""
    audited.gatepost.client.call(
        audited.gatepost.token(org_id="long"), "write", {"text": "y" * 9000}
    )
    (record,) = audited.records("long")

    assert record.private["arguments"] == '{"text": "' + "y" * 190 + "…"
