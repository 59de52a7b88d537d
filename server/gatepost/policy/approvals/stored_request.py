"""Approval requests as they are stored: their arguments are sealed, and shown without secrets."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    load_pem_private_key,
    load_ssh_private_key,
)
from msgspec.structs import replace

from gatepost.policy.approvals.approval_request import ApprovalRequest, definition_of
from gatepost.policy.idempotency.idempotency_record import digest_of
from gatepost.redaction import json_document
from gatepost.redaction.redactor import are_clear, is_prompt
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.approvals import ApprovalRecord
from gatepost.tools.api import Call, Tool, ToolFailure
from gatepost.tools.redaction import Redaction
from gatepost.tools.secret import literals
from gatepost_authz.strict_json import StrictJsonError, members

MOST_ARGUMENTS = 180_000
"""Maximum size of arguments for approval, in bytes; encryption adds a third."""

PURPOSE, KEYED = "approval arguments", "approval digest"

MARK = "[REDACTED:"
"""The start of the placeholder for a secret."""

WITHHELD = (
    "A person has to approve this call and would not see all of it: what looks like a private key "
    "is none, or the value of a secret argument stands in another one as well."
)

MARKED = re.compile(r"\[REDACTED:([^\[\]\n]{1,128})\]")
KEY = "PRIVATE_KEY"
MOST_KEYS = 8
"""Each takes about a millisecond to parse."""
_LINES = re.compile(
    r"-----BEGIN [A-Z0-9 ]+-----\n(?:[^\n]{64,76}\n)*[^\n]{1,76}\n-----END [A-Z0-9 ]+-----"
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
    redactor = redaction.of(tenant)
    if not written and is_prompt(arguments) and are_clear([arguments], redactor):
        return arguments  # true for nearly all calls
    before = shown = json_document.cleaned(arguments, redactor) or arguments
    if written:
        shown = json_document.cleaned(arguments, redactor.with_values(written)) or arguments
    texts = [text for _, text in written]
    if hides_words(arguments, shown) or hides_arguments(arguments, before, shown, texts):
        raise ToolFailure("validation", WITHHELD)
    return shown


def check_readable(arguments: bytes) -> None:
    """Return a ToolFailure for arguments that an approver could read differently than the tool."""
    if len(arguments) > MOST_ARGUMENTS:
        raise ToolFailure(
            "validation",
            f"A person has to approve this call, and its arguments have {len(arguments)} bytes; "
            f"at most {MOST_ARGUMENTS} can be looked at. Send less at once.",
        )

    try:
        json.loads(arguments, object_pairs_hook=members)
    except StrictJsonError:
        # Some parsers take the first of two equal names, others the last: the approver could see
        # another value than the tool gets.
        message = "The arguments have a name twice; give each one once."
        raise ToolFailure("validation", message) from None
    except (ValueError, RecursionError):
        raise ToolFailure("validation", "The arguments are not JSON that can be shown.") from None


def hides_words(arguments: bytes, shown: bytes) -> bool:
    """
    Return whether a redacted private key in *shown* is something else.

    It is the only secret pattern that matches words and lines. A caller could put text between the
    begin and end lines, which the approver would not see although the tool gets it.
    """
    originals, shown_texts = list(_leaves(arguments)), list(_leaves(shown))
    if len(originals) != len(shown_texts):
        return True
    hidden = [
        part
        for one, other in zip(originals, shown_texts, strict=True)
        if one != other and f":{KEY}]" in str(other)
        for part in _parts(str(one), str(other))
    ]
    return len(hidden) > MOST_KEYS or not all(map(_is_key, hidden))


def hides_arguments(arguments: bytes, before: bytes, after: bytes, secrets: Sequence[str]) -> bool:
    """
    Return whether the values of secret arguments, *secrets*, hide anything but those arguments.

    *before* and *after* are the shown arguments without and with these values redacted. A caller
    that uses an address as a password too would have the address redacted in both places.
    """
    own = Counter(secrets)
    triples = zip(_leaves(arguments), _leaves(before), _leaves(after), strict=True)
    for original, one, other in triples:
        if one == other:
            continue
        if not own[str(original)]:
            return True
        own[str(original)] -= 1
    return False


def _leaves(encoded: bytes) -> Iterator[Any]:
    """Yield names and values in their order, repeated names included."""
    left: list[Any] = [json.loads(encoded, object_pairs_hook=list)]
    while left:
        one = left.pop()
        if isinstance(one, list | tuple):
            left.extend(reversed(one))
        else:
            yield one


def _parts(original: str, shown_text: str) -> Iterator[str]:
    """Yield at least the parts of *original* that were redacted as keys."""
    pieces = MARKED.split(shown_text)
    names, segments = pieces[1::2], pieces[::2]
    at = len(segments[0])
    for name, segment in zip(names[:-1], segments[1:-1], strict=True):
        end = max(original.find(segment, at), at)
        if name == KEY:
            yield original[at:end]
        at = end + len(segment)
    if names[-1] == KEY:
        yield original[at : len(original) - len(segments[-1])]


def _is_key(text: str) -> bool:
    encoded = text.strip().replace("\r\n", "\n")
    if not _LINES.fullmatch(encoded):
        return False
    load = load_ssh_private_key if "OPENSSH" in encoded[:40] else load_pem_private_key
    try:
        load(encoded.encode(), None, unsafe_skip_rsa_key_validation=True)
    except TypeError:
        return True  # a key with a password
    except (ValueError, UnsupportedAlgorithm):
        return False
    return True
