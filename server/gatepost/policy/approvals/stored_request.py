"""Approval requests as they are stored, and without a person who was revoked or erased."""

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from msgspec.structs import replace

from gatepost.policy.approvals.request import (
    ERASED,
    ApprovalDecision,
    ApprovalGrant,
    ApprovalRequest,
    DisplayedParty,
    IsRevoked,
    definition_of,
)
from gatepost.storage.approvals import ApprovalRecord, ApprovalStore
from gatepost.tools.api import Call, Tool
from gatepost_authz.caller import TenantContext

PAGE = 200
CLOCKS_S = 60.0
"""
If the issue time of a token is unknown, it counts as issued this long before it was used. Clocks
differ, and a revoked token must not be taken for one that was issued later.
"""


class StoredRequest(msgspec.Struct, frozen=True):
    """The part of a request that is stored in plain text."""

    request: ApprovalRequest
    digest: bytes
    """The digest of the arguments."""
    timeout_s: float
    caller: dict[str, Any] = {}
    """The caller as conditions see it, to evaluate edited arguments."""


class SealedArguments(msgspec.Struct, frozen=True):
    """The part of a request that is stored encrypted."""

    arguments: bytes
    """Raw JSON, as the call sent it."""
    edited: bytes | None = None


class StoredApproval(msgspec.Struct, frozen=True):
    """A request as a stored record and in its decoded form."""

    record: ApprovalRecord
    details: StoredRequest

    @property
    def request(self) -> ApprovalRequest:
        """Return the request as approvers see it."""
        return self.details.request

    @classmethod
    def new(cls, details: StoredRequest, binding: bytes, sealed: str) -> "StoredApproval":
        """Return a request that is not stored yet; *sealed* are its encrypted arguments."""
        request = details.request
        caller = request.caller
        record = ApprovalRecord(
            id=request.id,
            binding=binding,
            state=request.state,
            tool=request.tool,
            issuer=caller.issuer,
            subject=caller.subject,
            subject_kind=caller.kind,
            client_id=caller.client_id,
            created_at=request.created_at,
            until=request.until,
            changed_at=request.created_at,
            # An open request is kept, however short the history.
            expires_at=request.until + 2 * details.timeout_s,
            details=msgspec.msgpack.encode(details),
            sealed=sealed,
        )
        return cls(record, details)

    def changed(self, now: float, *, keep_s: float, **changes: Any) -> "StoredApproval":
        """Return a copy with changed fields; ``binding`` and ``sealed`` belong to the record."""
        own = {name: changes.pop(name) for name in ("binding", "sealed") if name in changes}
        request = replace(self.request, **changes)
        details = replace(self.details, request=request)
        record = replace(
            self.record,
            state=request.state,
            until=request.until,
            changed_at=now if changes else self.record.changed_at,
            # Kept long enough for a retry to get the decision, however short the history.
            expires_at=max(request.until, now) + max(keep_s, self.details.timeout_s),
            details=msgspec.msgpack.encode(details),
            **own,
        )
        return StoredApproval(record, details)

    def kept(self) -> "StoredApproval":
        """Return a copy with the next revision number, after the record was stored."""
        return StoredApproval(replace(self.record, revision=self.record.revision + 1), self.details)


_decode = msgspec.msgpack.Decoder(StoredRequest).decode


def approval_of(record: ApprovalRecord) -> StoredApproval:
    """Decode a record."""
    return StoredApproval(record, _decode(record.details))


def binding_of(call: Call, tool: Tool, digest: bytes, policy: str) -> bytes:
    """Return a digest of caller, client, actor, tool with its definition, arguments and policy."""
    caller = call.caller
    # As JSON, so that no choice of ids makes two different calls the same.
    who = (*caller.principal_key, caller.client_id, caller.actor)
    definition = definition_of(tool)
    # Without one, the digest is the one of earlier releases.
    named = (*who, tool.name, digest.hex(), policy, *([definition] if definition else []))
    return hashlib.sha256(msgspec.json.encode(named)).digest()


def key_of_use(request_id: str) -> bytes:
    """Return the idempotency key of an approval's single use."""
    return hashlib.sha256(f"approval {request_id}".encode()).digest()


def token_claims(party: DisplayedParty, tenant: str, at: float) -> TenantContext | None:
    """
    Rebuild the claims of the token that a party used *at* that time, for the check of revocations.

    Return None for an operator on the command line, who used no token.
    """
    if party.kind == "operator":
        return None
    return TenantContext(
        tenant_id=tenant,
        issuer=party.issuer,
        subject=party.subject,
        subject_kind=party.kind,
        client_id=party.client_id,
        actor=party.actor,
        issued_at=int(at - CLOCKS_S) if party.issued_at is None else party.issued_at,
        resource="",
        expires_at=0,
    )


def caller_is_revoked(request: ApprovalRequest, is_revoked: IsRevoked) -> bool:
    """Return whether the caller of the request is revoked."""
    return _revoked(request.caller, request.tenant, request.created_at, is_revoked)


def revoked_approvals(
    request: ApprovalRequest, is_revoked: IsRevoked
) -> tuple[ApprovalDecision, ...]:
    """Return the approvals by revoked approvers; their rejections stay valid."""
    return tuple(
        one
        for one in request.decisions
        if one.verdict == "approved" and _revoked(one.by, request.tenant, one.at, is_revoked)
    )


def is_valid_grant(grant: ApprovalGrant, is_revoked: IsRevoked) -> bool:
    """Return whether neither the grant's caller nor its approver is revoked."""
    people = (grant.caller, grant.by)
    return not any(_revoked(one, grant.tenant, grant.created_at, is_revoked) for one in people)


def _revoked(party: DisplayedParty, tenant: str, at: float, is_revoked: IsRevoked) -> bool:
    token = token_claims(party, tenant, at)
    return token is not None and is_revoked(token)


async def erase_decider(approvals: ApprovalStore, issuer: str, subject: str) -> int:
    """
    Erase a person from decisions about other people's calls; return the number of changed records.

    Waiting requests that they have approved need another approver. Raises StoreUnavailable; you can
    then call it again.
    """

    def is_theirs(decision: ApprovalDecision) -> bool:
        return (decision.by.issuer, decision.by.subject) == (issuer, subject)

    changed = 0
    async for one in _all(approvals):
        record: ApprovalRecord | None = one
        while record is not None:
            details = approval_of(record).details
            if not any(map(is_theirs, details.request.decisions)):
                break
            decisions = tuple(
                replace(decision, by=ERASED, reason="") if is_theirs(decision) else decision
                for decision in details.request.decisions
                if record.state != "waiting" or not is_theirs(decision)
            )
            request = replace(details.request, decisions=decisions)
            encoded = msgspec.msgpack.encode(replace(details, request=request))
            if await approvals.replace(replace(record, details=encoded)):
                changed += 1
                break
            record = await approvals.get(record.id)
    return changed


async def _all(approvals: ApprovalStore) -> AsyncIterator[ApprovalRecord]:
    place: tuple[float, str] | None = None
    while page := await approvals.waiting(PAGE, place):
        for record in page:
            yield record
        place = page[-1].created_at, page[-1].id
    place = None
    while page := await approvals.past(place, PAGE):
        for record in page:
            yield record
        place = page[-1].changed_at, page[-1].id
