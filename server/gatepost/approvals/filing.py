"""How a request is kept: what people are shown in clear, the arguments sealed."""

import hashlib
import json
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from gatepost.approvals import verbatim
from gatepost.approvals.condition import seen_of
from gatepost.approvals.policy import Need
from gatepost.approvals.request import Request, Undecidable, party_of
from gatepost.approvals.sight import hides_arguments, hides_words
from gatepost.guard.once import digest_of
from gatepost.keyring import KeyRing
from gatepost.redaction import document
from gatepost.stores.approvals import ApprovalRecord
from gatepost.tools.api import Call, Tool, ToolFailure
from gatepost.tools.redaction import Redaction
from gatepost.tools.secret import literals

MOST_ARGUMENTS = 180_000
"""Bytes of arguments that a person can be asked about; the key ring takes a third more."""
PURPOSE, KEYED = "approval arguments", "approval digest"

MARK = "[REDACTED:"
"""What stands in the place of a secret begins so."""

WITHHELD = (
    "A person has to approve this call and would not see all of it: what looks like a private key "
    "is none, or the value of a secret argument stands in another one as well."
)


class File(msgspec.Struct, frozen=True):
    """What is kept in clear of one request."""

    request: Request
    policy: str
    digest: bytes
    """Of the arguments."""
    timeout_s: float
    caller: dict[str, Any] = {}
    """As conditions see it, for arguments that a person writes."""


class Sealed(msgspec.Struct, frozen=True):
    """What is kept sealed."""

    arguments: bytes
    """Raw JSON, as the call had it."""
    edited: bytes | None = None


class Case(msgspec.Struct, frozen=True):
    """One request as it is kept, and as it is read."""

    record: ApprovalRecord
    file: File

    @property
    def request(self) -> Request:
        """As it is shown."""
        return self.file.request

    def changed(self, now: float, *, keep_s: float, **changes: Any) -> "Case":
        """
        The same with other members of its request; ``meets`` and ``sealed`` are the record's own.
        """
        own = {name: changes.pop(name) for name in ("meets", "sealed") if name in changes}
        request = replace(self.request, **changes)
        file = replace(self.file, request=request)
        record = replace(
            self.record,
            state=request.state,
            until=request.until,
            changed_at=now if changes else self.record.changed_at,
            # However short the history, whoever calls again hears what became of it.
            expires_at=max(request.until, now) + max(keep_s, self.file.timeout_s),
            details=msgspec.msgpack.encode(file),
            **own,
        )
        return Case(record, file)


_decode = msgspec.msgpack.Decoder(File).decode
_sealed = msgspec.msgpack.Decoder(Sealed).decode


def case_of(record: ApprovalRecord) -> Case:
    """What a record says."""
    return Case(record, _decode(record.details))


class Cabinet:
    """Makes the records of requests, and opens what is sealed in them."""

    def __init__(self, keyring: KeyRing, redaction: Redaction) -> None:
        self._keyring, self._redaction = keyring, redaction

    def digest(self, tool: Tool, arguments: bytes) -> bytes:
        """
        The same for the same arguments, however they are spelt.

        Whoever reads the database must not try passwords on those of a tool that takes secrets.
        """
        digest = digest_of(arguments)
        if not tool.secret_arguments:
            return digest
        return hashlib.sha256(self._keyring.sign(KEYED, digest).encode()).digest()

    def binding(self, call: Call, tool: Tool, digest: bytes, policy: str) -> bytes:
        """What an approval is bound to: caller, client, actor, tool, arguments and policy."""
        caller = call.caller
        # As JSON, so that no choice of ids makes two different calls the same.
        who = (*caller.principal_key, caller.client_id, caller.actor)
        named = (*who, tool.name, digest.hex(), policy)
        return hashlib.sha256(msgspec.json.encode(named)).digest()

    def filed(self, call: Call, tool: Tool, need: Need, policy: str, now: float) -> ApprovalRecord:
        """A new request; ToolFailure where no person could judge the call."""
        check_readable(call.arguments)
        caller = call.caller
        request = Request(
            id=secrets.token_hex(12),
            tenant=caller.tenant_id,
            state="waiting",
            tool=tool.name,
            title=tool.title or "",
            caller=party_of(caller),
            arguments=self.shown(caller.tenant_id, tool, call.arguments),
            created_at=now,
            until=now + need.timeout_s,
            reason=need.reason,
            needed=need.approvals,
            by=need.of(caller.subject_kind),
            policy=policy,
            request_id=call.request_id,
            correlation=call.correlation,
            read_only=tool.annotations.read_only_hint is True,
            destructive=tool.annotations.destructive_hint is True,
        )
        digest = self.digest(tool, call.arguments)
        file = File(request, policy, digest, need.timeout_s, seen_of(caller))
        return ApprovalRecord(
            id=request.id,
            meets=self.binding(call, tool, digest, policy),
            state="waiting",
            tool=tool.name,
            issuer=caller.issuer,
            subject=caller.subject,
            subject_kind=caller.subject_kind,
            client_id=caller.client_id,
            created_at=now,
            until=request.until,
            changed_at=now,
            # Nothing of an open request is forgotten, however short the history.
            expires_at=request.until + 2 * need.timeout_s,
            details=msgspec.msgpack.encode(file),
            sealed=self.seal(request.id, Sealed(call.arguments)),
        )

    def seal(self, approval_id: str, arguments: Sealed) -> str:
        """Unreadable without the key ring, and of no use in another request."""
        payload = msgspec.msgpack.encode(arguments)
        return self._keyring.seal(PURPOSE, payload, context=approval_id.encode())

    def open(self, record: ApprovalRecord) -> Sealed | None:
        """What was sealed; None when nothing is there, or its key is gone."""
        if record.sealed is None:
            return None
        opened = self._keyring.open(PURPOSE, record.sealed, context=record.id.encode())
        return None if opened is None else _sealed(opened)

    def shown(self, tenant: str, tool: Tool, arguments: bytes) -> bytes:
        """
        Arguments as people may see them: without secrets of the tenant, or written in them.

        ToolFailure where more would be withheld than secrets.
        """
        written = [
            (next((step for step in reversed(path) if step is not None), "argument").upper(), text)
            for path in tool.secret_arguments
            for text in literals((path,), arguments)
        ]
        redactor = self._redaction.of(tenant)
        before = shown = document.cleaned(arguments, redactor) or arguments
        if written:
            shown = document.cleaned(arguments, redactor.with_values(written)) or arguments
        texts = [text for _, text in written]
        if hides_words(arguments, shown) or hides_arguments(arguments, before, shown, texts):
            raise ToolFailure("validation", WITHHELD)
        return shown

    def clean(self, tenant: str, text: str) -> str:
        """A person's words without secrets."""
        return self._redaction.clean(tenant, text)


def claim_of(request_id: str) -> bytes:
    """The name of the claim under which the one use of an approval runs."""
    return hashlib.sha256(f"approval {request_id}".encode()).digest()


def check_readable(arguments: bytes) -> None:
    """ToolFailure for arguments that a person would not see as the tool reads them."""
    if len(arguments) > MOST_ARGUMENTS:
        raise ToolFailure(
            "validation",
            f"A person has to approve this call, and its arguments have {len(arguments)} bytes; "
            f"at most {MOST_ARGUMENTS} can be looked at. Send less at once.",
        )

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(members := dict(pairs)) < len(pairs):
            # One parser takes the first of two, another the last: the person would approve
            # something else than what runs.
            raise ToolFailure("validation", "The arguments have a name twice; give each one once.")
        return members

    try:
        json.loads(arguments, object_pairs_hook=once)
    except (ValueError, RecursionError):
        raise ToolFailure("validation", "The arguments are not JSON that can be shown.") from None


def merged(edited: bytes, shown: bytes, original: bytes) -> bytes:
    """
    The arguments that a person wrote, secrets that they were not shown put back in their places.

    Raises Undecidable where a mark of something withheld is nowhere it was.
    """
    try:
        wanted = verbatim.decoded(edited)
    except ValueError:
        raise Undecidable("The edited arguments are not JSON.") from None
    if not isinstance(wanted, dict):
        raise Undecidable("The edited arguments are not a JSON object.")
    try:
        whole = _restored(wanted, verbatim.decoded(shown), verbatim.decoded(original), "")
        arguments = verbatim.encoded(whole)
    except RecursionError:
        raise Undecidable("The edited arguments are nested too deeply.") from None
    except UnicodeEncodeError:
        raise Undecidable("The edited arguments are not JSON.") from None
    try:
        check_readable(arguments)
    except ToolFailure as refused:
        raise Undecidable(refused.failure.message) from None
    return arguments


def _restored(wanted: Any, shown: Any, original: Any, place: str) -> Any:
    if isinstance(wanted, dict):
        shown, original = _mapping(shown), _mapping(original)
        for name in wanted:
            _unmarked(name, place)
        return {
            name: _restored(value, shown.get(name), original.get(name), f"{place}.{name}")
            for name, value in wanted.items()
        }
    if isinstance(wanted, list):
        olds = [*zip(shown, original, strict=False)] if _lists(shown, original) else []
        olds += [(None, None)] * (len(wanted) - len(olds))
        return [
            _restored(value, *old, f"{place}[{at}]")
            for at, (value, old) in enumerate(zip(wanted, olds, strict=False))
        ]
    if wanted == shown and type(wanted) is type(shown):
        return original
    if isinstance(wanted, str):
        _unmarked(wanted, place)
    return wanted


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _lists(*values: Any) -> bool:
    return all(isinstance(value, list) for value in values)


def _unmarked(text: str, place: str) -> None:
    if MARK in text:
        where = place.removeprefix(".") or "the arguments"
        raise Undecidable(
            f"Part of {where} is withheld, so it can be left as it is or written anew, "
            "but not changed around the withheld part."
        )
