"""The format of an audit record: its body, its erasable details, and what it says of a call."""

from collections.abc import Mapping
from ipaddress import IPv6Address
from typing import Literal, TypeGuard

import msgspec

from gatepost.audit.chain import text
from gatepost.redaction.cut_document import cut_whole, is_clear_before
from gatepost.redaction.json_document import cleaned
from gatepost.redaction.redactor import are_clear
from gatepost.storage.audit import (
    FIRST_WRITER,
    AuditQuery,
    AuditRow,
    AuditStore,
    NewAuditRecord,
    Position,
    record_id,
)
from gatepost.tools.calls.redacted_call import RedactedCall
from gatepost.tools.calls.stage import RaisedReason
from gatepost.tools.offers.offer import Call, Failure, Tool
from gatepost_authz.caller import TenantContext

RecordKind = Literal[
    "call",
    "refusal",
    "approval",
    "grant",
    "revocation",
    "secret",
    "signin",
    "tenant_mismatch",
    "token",
    "tenant",
    "upstream",
    "agent",
    "key",
    "erasure",
    "retention",
    "gap",
    "break",
]
"""
The kind of a record. The last five concern the audit log itself: another key signs from here on,
details were erased, old records were removed, records were lost, and the end of the chain was not
the one that this server had written.
"""
OVERLAP_BYTES = 65_536
"""
Bytes after the shown part of the arguments that are searched, too: a secret that begins before the
cut must be found whole. No stored secret is longer.
"""

REFUSED = frozenset(
    {
        "unknown",
        "insufficient_scope",
        "insufficient_authentication",
        "missing_capability",
        "rate_limit",
        "refused",
    }
)
"""Outcomes of calls whose tool did not run."""


class RecordBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """
    The hashed part of a record, with its fields in this order; empty ones are left out.

    It contains neither personal data nor secrets, only ``commitments`` to them: SHA-256 of the salt
    and the value, in hexadecimal. All numbers are integers, so that every JSON library writes them
    the same.
    """

    at: int
    """When the event ended, in milliseconds since the epoch."""
    kind: str
    tenant: str
    tool: str = ""
    """The declared name of the tool, or of the other offer that was called."""
    offer: str = "tool"
    """The type of the offer that was called: a tool, a document, a prompt or a skill."""
    outcome: str = ""
    """`success`, the kind of the failure or refusal, or the decision."""
    duration_us: int = 0
    request_id: str = ""
    retry: str = ""
    """The kind of idempotency key that the call had."""
    replayed: bool = False
    """Whether the answer is the stored outcome of the first call."""
    approval: str = ""
    depth: int = 0
    """The nesting depth of the call (`ctx.call`)."""
    times: int = 1
    """The number of refusals that this record counts."""
    first: int = 0
    """When the first counted refusal ended; `at` is when the last one ended."""
    limit: str = ""
    """The limit that refused the call: `caller`, `tenant`, `tool` or `server`, among others."""
    subject_kind: str = ""
    """Whether the caller is a person ("user") or a machine ("client")."""
    shared_audience: bool = False
    """Whether the token names other audiences as well, so that other servers may have it."""
    details: Mapping[str, str] = {}
    commitments: Mapping[str, str] = {}


class Numbered(RecordBody, frozen=True, kw_only=True):
    """A body as it is stored, with its number."""

    number: int
    writer: int = FIRST_WRITER


class RecordedPerson(msgspec.Struct, frozen=True, omit_defaults=True):
    """The identity of a person or machine: the value of the details `caller` and `about`."""

    issuer: str
    subject: str
    client: str = ""
    name: str = ""
    actor: str = ""
    """The acting party, as the token says (``act``)."""
    peer: str = ""
    """
    Their network address, if it is known.

    It is part of this value, so that it is erased together with the person and needs no commitment
    of its own.
    """


SaltedDetails = dict[str, tuple[str, str]]
"""Salt (hexadecimal) and value of each detail, by field."""
decode_numbered = msgspec.json.Decoder(Numbered).decode
decode_side = msgspec.json.Decoder(SaltedDetails).decode
_decode_person = msgspec.json.Decoder(RecordedPerson).decode


def person_in(detail: str) -> RecordedPerson | None:
    """Return the person in a detail; None if the detail was changed so that it has none."""
    try:
        return _decode_person(detail)
    except msgspec.MsgspecError:
        return None


class AuditRecord(Numbered, frozen=True, kw_only=True):
    """A stored record: its body with the details that were not erased, and its hash."""

    private: Mapping[str, str] = {}
    """The value of each detail, by field."""
    hash: str = ""
    """In hexadecimal."""

    @property
    def id(self) -> str:
        """Return how it is named among the records of its tenant."""
        return record_id(self.writer, self.number)

    @property
    def position(self) -> Position:
        """Return where it is among the records of its tenant."""
        return self.at, self.writer, self.number

    @property
    def erased(self) -> bool:
        """Return whether it had details that were erased."""
        return bool(self.commitments) and not self.private

    @property
    def caller(self) -> RecordedPerson | None:
        """Return who did it; None if that was erased, never known or made unreadable."""
        return person_in(self.private["caller"]) if "caller" in self.private else None

    @property
    def person(self) -> RecordedPerson | None:
        """Return the person whom it concerns, or None."""
        return person_in(self.private["about"]) if "about" in self.private else None


_decode_record = msgspec.json.Decoder(AuditRecord).decode


def read(row: AuditRow) -> AuditRecord:
    """Decode a row without verifying it; `verify` does that."""
    side = decode_side(row.side) if row.side is not None else {}
    private = {field: value for field, (_, value) in side.items()}
    record = _decode_record(row.body)
    return msgspec.structs.replace(record, private=private, hash=row.hash.hex())


async def search(audit_store: AuditStore, tenant: str, query: AuditQuery) -> list[AuditRecord]:
    """Return a tenant's records that match *query*, the newest first; raises StoreUnavailable."""
    return [read(row) for row in await audit_store.tenant_log(tenant).find(query)]


def person_of(caller: TenantContext, peer: str = "") -> RecordedPerson:
    """Return the identity of a caller with its address."""
    named = caller.issuer, caller.subject, caller.client_id or "", caller.name, caller.actor or ""
    fields = [*named, peer and address(peer)]
    together = "".join(fields)
    if text(together) is not together:
        fields = [*map(text, fields)]
    return RecordedPerson(*fields)


def address(peer: str) -> str:
    """Return an address in its usual form: IPv4 for IPv4-mapped IPv6."""
    if not peer.startswith("::ffff:"):
        return peer
    try:
        mapped = IPv6Address(peer).ipv4_mapped
    except ValueError:
        return peer
    return peer if mapped is None else str(mapped)


EndedCall = tuple[Call, float, float, list[RedactedCall], Failure | RaisedReason | None]
"""
The call, when it began and ended (`perf_counter`), its redacted call if any, its ending.

Each call makes one: a plain tuple takes a third of the time of a struct.
"""


class BuiltRecord(msgspec.Struct, frozen=True, gc=False):
    """A new record of a tenant that needs no building."""

    tenant: str
    record: NewAuditRecord
    caller: TenantContext | None = None
    """The caller whose quota it counts against; None: it counts against none."""


AuditEntry = EndedCall | BuiltRecord
"""What waits to be written. A tuple is told from a struct without cost."""


def is_limited(ending: Failure | RaisedReason) -> TypeGuard[Failure]:
    """Return whether a limit has refused the call."""
    return isinstance(ending, Failure) and ending.kind == "rate_limit"


def only_read(entry: AuditEntry) -> bool:
    """Return whether it is a call that succeeded, of a tool that declares to change nothing."""
    if not isinstance(entry, tuple) or entry[4] is not None or not entry[3]:
        return False
    offer = entry[3][0].offer
    return not isinstance(offer, Tool) or offer.effects.read_only


def asked_tool(call: Call, outcome: str) -> str:
    """Return the name of a tool that needs more permissions; other names may be anything."""
    is_known = outcome.startswith("insufficient_") and call.kind in {"tool", "prompt"}
    return call.name if is_known else ""


def may_show(redacted: RedactedCall, outcome: str) -> bool:
    """
    Return whether all secrets in the arguments are known, so that the rest may be shown.

    If a tool takes secrets, they are found in arguments that its schema allows. In other arguments
    they may be anywhere.
    """
    if outcome == "rate_limit" or redacted.offer.forwards:
        return False
    return redacted.checked and outcome != "validation" if redacted.offer.secret_arguments else True


def shown_arguments(redacted: RedactedCall, max_bytes: int) -> str:
    """Return the call's arguments without secrets, cut to *max_bytes* bytes."""
    arguments = redacted.call.arguments
    data, redactor = cut_whole(arguments, max_bytes + OVERLAP_BYTES), redacted.now()
    # The quotation mark ends a string that the cut has left open.
    if not (is_clear_before(data, max_bytes, redactor) or are_clear([data + b'"'], redactor)):
        clean = cleaned(data, redactor)
        data = data if clean is None else clean
    if len(arguments) <= max_bytes:
        return text(data.decode(errors="replace"), len(data))
    return text(data[:max_bytes].decode(errors="replace"), max_bytes) + "…"


def with_origin(redacted: RedactedCall) -> Mapping[str, str]:
    """Return the remarks of a call, with the upstream that defines the called offer."""
    origin = redacted.offer.origin
    if origin is None:
        return redacted.remarks or {}
    remarks = {**(redacted.remarks or {}), "upstream": text(origin.server)}
    if isinstance(redacted.offer, Tool):
        # The URI of a resource could hold personal data, and these details cannot be erased.
        remarks["upstream_tool"] = text(origin.key)
    return {**remarks, "definition": text(origin.digest)}
