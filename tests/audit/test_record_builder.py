"""What new records say, however they are put together."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from gatepost.audit import record_builder as builder_module
from gatepost.audit.chain import commitment
from gatepost.audit.record import (
    AuditEntry,
    RecordBody,
    SaltedDetails,
    decode_side,
    person_in,
    shown_arguments,
)
from gatepost.audit.record_builder import RecordBuilder
from gatepost.config.audit import AuditSettings
from gatepost.storage.audit import NewAuditRecord
from gatepost.tools.calls.redacted_call import RedactedCall
from gatepost.tools.calls.redaction import NoSecrets, Redaction
from gatepost.tools.calls.stage import RaisedReason
from gatepost.tools.context.idempotency_key import IdempotencyKey
from gatepost.tools.offers.offer import Call, Failure
from tests.audit.conftest import ISSUER, pack, person
from tests.support.measuring import each

NOW = 1_800_000_000.0, 100.0
BEGAN_AT_S, ENDED_AT_S = 99.5, 99.75
ENDED_AT_US, DURATION_US = 1_799_999_999_750, 250_000
ALICE = person("alice")
CALLER_JSON = f'{{"issuer":"{ISSUER}","subject":"alice"}}'
CLIENT_IPV4 = "203.0.113.9"
UNUSUAL_TEXT = 'Ünï"cö\\de\n\u2028'
PLAIN_ARGUMENTS, SECRET = b'{"text": "x"}', b'{"text": "ghp_' + b"a1" * 20 + b'"}'
encode_json = msgspec.json.encode


class OneSecret(NoSecrets):
    """One secret that all tenants share."""

    version = 1
    values = {"KEY": "correct-horse-battery"}


REDACTION = Redaction(OneSecret())


def a_call(**fields: Any) -> Call:
    usual = {"caller": ALICE, "name": "write", "arguments": PLAIN_ARGUMENTS, "request_id": "r-1"}
    return Call(**{**usual, **fields})


def a_guard(call: Call, tool: str = "write", *, named: str = "", **fields: Any) -> RedactedCall:
    offer = pack.tools[tool]
    if named:
        offer = msgspec.structs.replace(offer, name=named)
    return RedactedCall(REDACTION, call, offer, **{"checked": True, **fields})


def entry_of(
    call: Call, guard: RedactedCall | None, ending: Failure | RaisedReason | None = None
) -> AuditEntry:
    return call, BEGAN_AT_S, ENDED_AT_S, [] if guard is None else [guard], ending


def new_records(entries: Sequence[AuditEntry], **settings: Any) -> list[NewAuditRecord]:
    by_tenant = RecordBuilder().new_records(entries, NOW, AuditSettings(**settings))
    return [record for new_records in by_tenant.values() for record in new_records]


def a_record(
    expected: dict[str, Any],
    private: dict[str, str],
    ending: Failure | RaisedReason | None = None,
    *,
    guarded: bool = True,
    guard: dict[str, Any] | None = None,
    **call: Any,
) -> Any:
    """Return a case: the call, and what its body and its side part say."""
    finished_call = a_call(**call)
    entry = entry_of(
        finished_call, a_guard(finished_call, **(guard or {})) if guarded else None, ending
    )
    usual = {"kind": "call", "tool": "write", "outcome": "success", "request_id": "r-1"}
    usual |= {"tenant": "acme", "subject_kind": "user", "duration_us": DURATION_US}
    return entry, {**usual, **expected}, {"caller": CALLER_JSON, **private}


ARGUMENTS = {"arguments": PLAIN_ARGUMENTS.decode()}
RECORDS: dict[str, Any] = {
    "success": a_record({}, ARGUMENTS),
    "another tool's name": a_record(
        {"tool": UNUSUAL_TEXT}, {"name": "write", **ARGUMENTS}, guard={"named": UNUSUAL_TEXT}
    ),
    "failure": a_record(
        {"outcome": "denied"},
        {"reason": UNUSUAL_TEXT, **ARGUMENTS},
        Failure("denied", UNUSUAL_TEXT),
    ),
    "a word of the tool's author": a_record(
        {"outcome": UNUSUAL_TEXT},
        ARGUMENTS,
        Failure(UNUSUAL_TEXT, ""),  # type: ignore[arg-type]  # it is not checked
    ),
    "refusal by a stage": a_record(
        {"outcome": "approval_pending"},
        {"reason": "Ask.", **ARGUMENTS},
        Failure("approval_pending", "Ask."),
    ),
    "wrong arguments": a_record(
        {"kind": "refusal", "outcome": "validation"},
        {"reason": "No.", **ARGUMENTS},
        Failure("validation", "No."),
        guard={"checked": False},
    ),
    "unknown": a_record(
        {"kind": "refusal", "tool": "", "outcome": "unknown"},
        {"reason": UNUSUAL_TEXT},
        RaisedReason("unknown", UNUSUAL_TEXT),
        guarded=False,
    ),
    "too few scopes": a_record(
        {"kind": "refusal", "outcome": "insufficient_scope"},
        {"reason": "needs x"},
        RaisedReason("insufficient_scope", "needs x"),
        guarded=False,
    ),
    "by a limit": a_record(
        {"kind": "refusal", "outcome": "rate_limit", "limit": "tenant"},
        {"reason": "Later."},
        Failure("rate_limit", "Later.", limit="tenant"),
    ),
    "by another limit": a_record(
        {"kind": "refusal", "outcome": "rate_limit"},
        {"reason": "Later."},
        Failure("rate_limit", "Later."),
    ),
    "correlation": a_record(
        {}, {"correlation": UNUSUAL_TEXT, **ARGUMENTS}, correlation=UNUSUAL_TEXT
    ),
    "what has no request": a_record({"request_id": ""}, ARGUMENTS, request_id=""),
    "retry": a_record(
        {"retry": "idempotency", "replayed": True},
        ARGUMENTS,
        idempotency_key=IdempotencyKey("idempotency", "k"),
        guard={"remarks": {"replayed": "yes"}},
    ),
    "remarks": a_record(
        {"approval": "a-1", "details": {"rule": UNUSUAL_TEXT, "other": "x"}},
        ARGUMENTS,
        guard={"remarks": {"rule": UNUSUAL_TEXT, "approval": "a-1", "other": "x"}},
    ),
    "within another": a_record({"depth": 2}, ARGUMENTS, depth=2),
    "prompt": a_record({"offer": "prompt"}, ARGUMENTS, kind="prompt"),
    "shared token of a machine": a_record(
        {"subject_kind": "client", "shared_audience": True, "tenant": UNUSUAL_TEXT},
        {
            "caller": encode_json(
                {"issuer": ISSUER, "subject": UNUSUAL_TEXT.replace("\u2028", "!")}
            ).decode()
        }
        | ARGUMENTS,
        caller=msgspec.structs.replace(
            person(UNUSUAL_TEXT.replace("\u2028", "!"), UNUSUAL_TEXT),
            subject_kind="client",
            shared_audience=True,
        ),
    ),
    "non-ASCII arguments": a_record(
        {}, {"arguments": '{"text": "ü"}'}, arguments='{"text": "ü"}'.encode()
    ),
    "secret": a_record({}, {"arguments": '{"text": "[REDACTED:GITHUB_TOKEN]"}'}, arguments=SECRET),
    "from somewhere": a_record(
        {},
        {"caller": CALLER_JSON.replace(",", f',"peer":"{CLIENT_IPV4}",'), **ARGUMENTS},
        peer=CLIENT_IPV4,
    ),
}


@each("name", RECORDS)
def test_a_record_equals_the_encoding_of_its_body(name: str) -> None:
    """The bytes of body and details match, because a verifier may encode them again."""
    entry, expected, private = RECORDS[name]
    (record,) = new_records([entry])
    side = decode_side(record.side or "")
    commitments = {field: commitment(*side[field]) for field in private}
    body = RecordBody(at=ENDED_AT_US, **expected, commitments=commitments)

    assert {field: value for field, (_, value) in side.items()} == private
    assert record.body == b"," + encode_json(body)[1:]
    assert record.side == encode_json(side)
    sort = (body.kind, body.tool, body.outcome)
    assert (record.at, record.sort) == (ENDED_AT_US, (*sort, body.limit, 1) if body.limit else sort)


def peer_of(record: NewAuditRecord) -> str:
    caller = person_in(decode_side(record.side or "")["caller"][1])
    assert caller is not None
    return caller.peer


def test_rate_limit_refusals_name_their_limit() -> None:
    """The body and the sort key name it; a limit of another system has no name."""
    limits = ("caller", "tenant", None)
    endings = [Failure("rate_limit", "Later.", limit=limit) for limit in limits]
    records = new_records([entry_of(a_call(), None, ending) for ending in endings])
    bodies = [msgspec.json.decode(b"{" + record.body[1:]) for record in records]

    assert [record.sort[3:] for record in records] == [("caller", 1), ("tenant", 1), ()]
    assert [body.get("limit", "") for body in bodies] == ["caller", "tenant", ""]


ARGUMENTS_BY_CASE: dict[str, bytes] = {
    "usual": PLAIN_ARGUMENTS,
    "nothing": b"{}",
    "token": SECRET,
    "secret": b'{"text": "my correct-horse-battery"}',
    "secret in two": b'{"a": "correct-horse", "b": "-battery"}',
    "secret in a list": b'["correct-horse","-battery"]',
    "secret in a list of one name": b'{"a": ["correct-horse", "-battery"]}',
    "secret in a name": b'{"correct-horse": "-battery"}',
    "escaped": b'{"text": "\\u0067hp_' + b"a1" * 20 + b'"}',
    "in base64": b'{"text": "' + b64encode(SECRET) + b'"}',
    "encoded for a URL": b'{"text": "%67hp_' + b"a1" * 20 + b'"}',
    "over the cut": b'{"text": "' + b"x" * 95 + SECRET[10:-2] + b'"}',
    "long": b'{"text": "' + b"y" * 300 + b'"}',
    "no UTF-8": b'{"text": "\xff\xfe"}',
    "several": b'{"a": "one", "b": ["two", "three"], "c": {"d": "four"}}',
}


SUSPECT_CASES = [
    name for name in ARGUMENTS_BY_CASE if name not in {"usual", "nothing", "several", "no UTF-8"}
]


@pytest.mark.parametrize("left_out", [(), ("token", "secret"), SUSPECT_CASES])
def test_arguments_redacted_together_equal_arguments_redacted_alone(left_out: list[str]) -> None:
    """No argument of one caller appears in another caller's record."""
    most = 100
    calls = [
        a_call(arguments=ARGUMENTS_BY_CASE[name])
        for name in ARGUMENTS_BY_CASE
        if name not in left_out
    ]
    records = new_records(
        [entry_of(call, a_guard(call)) for call in calls], max_argument_bytes=most
    )
    arguments = [decode_side(record.side or "")["arguments"][1] for record in records]

    assert arguments == [shown_arguments(a_guard(call), most) for call in calls]


@each("more", ["", "y" * 6_000, 'a "text"\n'], ids=len)
def test_a_private_key_in_a_list_of_its_lines_is_redacted(more: str) -> None:
    """Tools that take the lines of a file get such arguments."""
    lines = [
        "-----BEGIN PRIVATE KEY-----",
        *["c2VjcmV0IGtleQ" * 4] * 3,
        "-----END PRIVATE KEY-----",
    ]
    call = a_call(arguments=encode_json({"lines": lines, "more": more}))

    (record,) = new_records([entry_of(call, a_guard(call))])

    shown = decode_side(record.side or "")["arguments"][1]
    assert shown.count("[REDACTED:PRIVATE_KEY]") == len(lines)
    assert "c2VjcmV0" not in shown


@each(("secret", "arguments"), [("1e+10", b'{"a":1e+10}'), ("12,34", b'{"a":[12,34],"b":"x"}')])
def test_a_secret_in_the_numbers_of_short_arguments_is_redacted(
    secret: str, arguments: bytes
) -> None:
    """However short it is."""
    call = a_call(arguments=arguments)
    source = OneSecret()
    source.values = {"KEY": secret}
    redacted = RedactedCall(Redaction(source), call, pack.tools["write"], checked=True)

    (record,) = new_records([entry_of(call, redacted)])

    assert secret not in decode_side(record.side or "")["arguments"][1]


FILLER_TEXT = b"y" * 200_000
LONG_ARGUMENTS: dict[str, tuple[bytes, bytes]] = {
    "nothing": (b'{"a": "' + FILLER_TEXT + b'"}', b'{"a": "yyy'),
    "secret before a long text": (
        b'{"a": "correct-horse-battery", "b": "' + FILLER_TEXT + b'"}',
        b'{"a": "[REDACTED:KEY]", "b": "yyy',
    ),
    "secret that goes on in a long text": (
        b'{"a": "correct-horse", "b": "-battery' + FILLER_TEXT + b'"}',
        b'{"a": "[REDACTED:KEY]", "b": "[REDACTED:KEY]yyy',
    ),
    "secret behind a long text, split": (
        b'{"a": "' + b"y" * 60_000 + b'correct-horse", "b": "-battery"}',
        b'{"a": "yyy',
    ),
    "token in a long text": (
        b'{"a": "' + SECRET[10:-2] + b" " + FILLER_TEXT + b'"}',
        b'{"a": "[REDACTED:GITHUB_TOKEN] yyy',
    ),
}


@each("name", LONG_ARGUMENTS)
def test_long_arguments_are_redacted_before_they_are_truncated(name: str) -> None:
    """A secret across the end of the truncated text is found."""
    arguments, begin = LONG_ARGUMENTS[name]
    call, most = a_call(arguments=arguments), 70_000
    (record,) = new_records([entry_of(call, a_guard(call))], max_argument_bytes=most)
    kept_arguments = decode_side(record.side or "")["arguments"][1]

    assert kept_arguments.encode().startswith(begin)
    assert "correct-horse" not in kept_arguments
    assert "-battery" not in kept_arguments


def test_secret_arguments_are_redacted_or_all_arguments_left_out() -> None:
    """If the arguments of a tool with secrets were not validated, none are recorded."""
    call = a_call(name="unlock", arguments=b'{"token": "hunter2hunter2", "safe": "front"}')
    entries = [entry_of(call, a_guard(call, "unlock", checked=right)) for right in (True, False)]
    sides: list[SaltedDetails] = [decode_side(record.side or "") for record in new_records(entries)]

    assert [side.get("arguments", ("", ""))[1] for side in sides] == [
        '{"token": "[REDACTED:TOKEN]", "safe": "front"}',
        "",
    ]


def test_the_caller_cache_never_returns_another_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test uses more callers and tools than the cache keeps."""
    monkeypatch.setattr(builder_module, "MAX_KNOWN", 3)
    monkeypatch.setattr(builder_module, "MAX_CALLERS", 3)
    builder = RecordBuilder()
    bodies = []
    for at in range(40):
        call = a_call(caller=person(f"p{at % 10}", f"t{at % 7}"))
        (records,) = builder.new_records(
            [entry_of(call, a_guard(call))], NOW, AuditSettings()
        ).values()
        bodies.append(
            (decode_side(records[0].side or "")["caller"][1], b"t%d" % (at % 7) in records[0].body)
        )

    assert bodies == [(CALLER_JSON.replace("alice", f"p{at % 10}"), True) for at in range(40)]


def test_the_caller_cache_never_returns_another_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """One token is used on several machines, and the cache is smaller than their number."""
    monkeypatch.setattr(builder_module, "MAX_CALLERS", 3)
    builder = RecordBuilder()
    addresses = [f"192.0.2.{at % 5}" for at in range(20)] + ["192.0.2.1", "192.0.2.2"] * 5
    calls = [
        a_call(peer=peer, caller=person("bob") if at % 3 else ALICE)
        for at, peer in enumerate(addresses)
    ]
    (records,) = builder.new_records(
        [entry_of(call, a_guard(call)) for call in calls], NOW, AuditSettings()
    ).values()

    assert [peer_of(new_record) for new_record in records] == addresses
    assert len(builder._callers) <= 3


def test_a_changed_peers_setting_applies_to_the_next_batch() -> None:
    """A cached caller does not keep an address that the setting forbids."""
    builder, call = RecordBuilder(), a_call(peer=CLIENT_IPV4)
    bodies = []
    for peers in (True, False, True):
        settings = AuditSettings(peers=peers)
        (records,) = builder.new_records([entry_of(call, a_guard(call))], NOW, settings).values()
        bodies.append(peer_of(records[0]))

    assert bodies == [CLIENT_IPV4, "", CLIENT_IPV4]
