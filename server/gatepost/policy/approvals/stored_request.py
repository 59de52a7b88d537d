"""Approval requests as they are stored; their arguments are encrypted, shown and merged here."""

import hashlib
import secrets
from typing import Any

import msgspec
from msgspec.structs import replace

from gatepost.documents.exact_json import decoded, encoded
from gatepost.policy.approvals.approval_request import (
    ApprovalRequest,
    ToolFacts,
    Undecidable,
    check_readable,
    party_of,
)
from gatepost.policy.approvals.policies import ApprovalNeed
from gatepost.policy.idempotency.idempotency_record import DAY_S, RecordTemplate, digest_of
from gatepost.redaction import json_document
from gatepost.redaction.hidden_text import hides_arguments, hides_words
from gatepost.redaction.redactor import are_clear, is_prompt
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.approvals import ApprovalRecord
from gatepost.tools.calls.redaction import Redaction
from gatepost.tools.offers.offer import Call, Tool, ToolFailure
from gatepost.tools.schemas.secret import literals

PURPOSE, KEYED = "approval arguments", "approval digest"

BEGUN_S = 30 * DAY_S
"""How long a call that has begun is remembered, even if all servers are down."""

MARK = "[REDACTED:"
"""The start of the placeholder for a secret."""

WITHHELD = (
    "A person has to approve this call and would not see all of it: what looks like a private key "
    "is none, or the value of a secret argument stands in another one as well."
)


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

    @property
    def approved(self) -> bytes:
        """Return the arguments that the call runs with."""
        return self.arguments if self.edited is None else self.edited


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
        own_fields = {name: changes.pop(name) for name in ("binding", "sealed") if name in changes}
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
            **own_fields,
        )
        return StoredApproval(record, details)

    def stored(self) -> "StoredApproval":
        """Return a copy with the next revision number, after the record was stored."""
        return StoredApproval(replace(self.record, revision=self.record.revision + 1), self.details)


_decode = msgspec.msgpack.Decoder(StoredRequest).decode


def approval_of(record: ApprovalRecord) -> StoredApproval:
    """Decode a record."""
    return StoredApproval(record, _decode(record.details))


def key_of_use(request_id: str) -> bytes:
    """Return the idempotency key of an approval's single use."""
    return hashlib.sha256(f"approval {request_id}".encode()).digest()


def use_of(request_id: str) -> RecordTemplate:
    """Return the idempotency record of an approval's single use; it outlasts the approval."""
    key, holder = key_of_use(request_id), secrets.token_hex(8)
    return RecordTemplate(key, key, holder, running_s=BEGUN_S, kept_s=DAY_S, unknown_s=None)


_sealed = msgspec.msgpack.Decoder(SealedArguments).decode


class ArgumentSealer:
    """Encrypts the arguments of approval requests with the key ring."""

    def __init__(self, keyring: KeyRing) -> None:
        self._keyring = keyring

    def digest(self, tool: Tool, arguments: bytes) -> bytes:
        """
        Return a digest that is the same for equal arguments, however they are written.

        It is keyed for tools with secret arguments, so that a reader of the database cannot test
        passwords against it.
        """
        digest = digest_of(arguments)
        if not tool.secret_arguments:
            return digest
        return hashlib.sha256(self._keyring.sign(KEYED, digest).encode()).digest()

    def seal(self, approval_id: str, arguments: SealedArguments) -> str:
        """Encrypt arguments, bound to this request."""
        payload = msgspec.msgpack.encode(arguments)
        return self._keyring.seal(PURPOSE, payload, context=approval_id.encode())

    def open(self, record: ApprovalRecord) -> SealedArguments | None:
        """Decrypt the arguments; None if there are none or the key is gone."""
        if record.sealed is None:
            return None
        opened = self._keyring.open(PURPOSE, record.sealed, context=record.id.encode())
        return None if opened is None else _sealed(opened)


def shown_arguments(redaction: Redaction, tenant: str, tool: Tool, arguments: bytes) -> bytes:
    """
    Return the arguments without secrets of the tenant and without secret arguments.

    ToolFailure if redaction would hide more than secrets.
    """
    written = [
        (next((step for step in reversed(path) if step is not None), "argument").upper(), text)
        for path in tool.secret_arguments
        for text in literals((path,), arguments)
    ]
    redactor = redaction.redactor_for(tenant)
    if not written and is_prompt(arguments) and are_clear([arguments], redactor):
        return arguments  # true for nearly all calls
    before = redacted = json_document.cleaned(arguments, redactor) or arguments
    if written:
        redacted = json_document.cleaned(arguments, redactor.with_values(written)) or arguments
    if redacted is before is arguments:
        return arguments  # nothing was redacted, so nothing is hidden
    texts = [text for _, text in written]
    if hides_words(arguments, redacted) or hides_arguments(arguments, before, redacted, texts):
        raise ToolFailure("validation", WITHHELD)
    return redacted


def request_of(
    call: Call, tool: Tool, need: ApprovalNeed, policy: str, redaction: Redaction, now: float
) -> ApprovalRequest:
    """Return a new request; ToolFailure if a person could not judge the call."""
    caller = call.caller
    party = party_of(caller)
    client_name = redaction.clean(caller.tenant_id, call.client.client_name)
    return ApprovalRequest(
        id=secrets.token_hex(12),
        tenant=caller.tenant_id,
        state="waiting",
        tool=tool.name,
        title=tool.title or "",
        caller=replace(party, client_name=client_name),
        arguments=shown_arguments(redaction, caller.tenant_id, tool, call.arguments),
        created_at=now,
        until=now + need.timeout_s,
        reason=need.reason,
        needed=need.approvals,
        by=need.approvers_for(party),
        policy=policy,
        facts=None if tool.origin is None else ToolFacts.from_tool(tool),
        request_id=call.request_id,
        correlation=call.correlation,
        read_only=tool.effects.read_only,
        destructive=tool.effects.destructive,
    )


def merged(edited: bytes, redacted: bytes, original: bytes) -> bytes:
    """
    Return the edited arguments with the redacted secrets restored in their places.

    Raises Undecidable if a redaction placeholder was moved or changed. Entries of a list may look
    alike and hide different secrets: with placeholders they stay as they are, and so does the
    number of entries.
    """
    try:
        value = decoded(edited)
        if not isinstance(value, dict):
            raise Undecidable("The edited arguments are not a JSON object.")
        arguments = encoded(_restored(value, decoded(redacted), decoded(original), ""))
        check_readable(arguments)
    except RecursionError:
        raise Undecidable("The edited arguments are nested too deeply.") from None
    except ValueError:
        raise Undecidable("The edited arguments are not JSON.") from None
    except ToolFailure as refused:
        raise Undecidable(refused.failure.message) from None
    return arguments


def _restored(edited: Any, redacted: Any, original: Any, path: str) -> Any:
    if isinstance(edited, dict):
        redacted = redacted if isinstance(redacted, dict) else {}
        original = original if isinstance(original, dict) else {}
        for name in edited:
            _check_unmarked(name, path)
        return {
            name: _restored(value, redacted.get(name), original.get(name), f"{path}.{name}")
            for name, value in edited.items()
        }
    if isinstance(edited, list):
        are_lists = isinstance(redacted, list) and isinstance(original, list)
        if not (are_lists and len(edited) == len(redacted) == len(original)):
            redacted = original = [None] * len(edited)
        paths = (f"{path}[{at}]" for at in range(len(edited)))
        return [
            _restored(entry, before, secret, where)
            if entry == before or len(edited) == 1
            else _restored(entry, None, None, where)
            for entry, before, secret, where in zip(edited, redacted, original, paths, strict=True)
        ]
    if edited == redacted and type(edited) is type(redacted):
        return original
    if isinstance(edited, str):
        _check_unmarked(edited, path)
    return edited


def _check_unmarked(text: str, path: str) -> None:
    if MARK in text:
        where = path.removeprefix(".") or "the arguments"
        raise Undecidable(
            f"Part of {where} is withheld, so it can be left as it is or written anew, "
            "but not changed around the withheld part or moved within a list."
        )
