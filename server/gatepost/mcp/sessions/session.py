"""The sessions of the older revisions: a handshake creates a signed id, bound to its caller."""

import hashlib
import secrets
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gatepost.mcp.client import name_of
from gatepost.mcp.request import decode_as
from gatepost.mcp.revisions import NEWEST_HANDSHAKE, counter_offer
from gatepost.tools.context.client import Capabilities
from gatepost_authz.caller import TenantContext

PURPOSE = "session"

# A client whose session has ended gets 404 and starts a new one. This only bounds how long an id
# that leaked together with a token is useful.
LIFETIME_S = 7 * 86_400
ID_CHARACTERS = 4096


class Signer(Protocol):
    """The part of the key ring that sessions need."""

    def sign(self, purpose: str, payload: bytes) -> str:
        """Return the signed payload, in characters that a header may contain."""

    def verify(self, purpose: str, token: str) -> bytes | None:
        """Return the payload if it was signed for this purpose, else None."""


class McpSession(msgspec.Struct, frozen=True, array_like=True):
    """The result of a handshake; it is part of the session id, so no replica stores it."""

    version: str
    capabilities: tuple[str, ...]
    """Client capabilities, as `sampling`, `elicitation`, `elicitation.url`, …"""
    issued_at: int
    nonce: bytes
    owner: bytes
    """Digest of the caller that owns the session."""
    client: str = ""
    """The name that the client gave itself."""

    @property
    def key(self) -> bytes:
        """Return the key of the session in the stores."""
        return self.nonce + self.owner

    @property
    def declared(self) -> Capabilities:
        """Return the capabilities of the client, as far as its revision has them (L-04)."""
        declared: dict[str, dict[str, Any]] = {}
        for name in self.capabilities:
            feature, _, part = name.partition(".")
            if feature == "elicitation" and self.version == "2025-03-26":
                continue
            parts = declared.setdefault(feature, {})
            # Before 2025-11-25 elicitation has only forms, and sampling has no tools.
            if part and self.version == NEWEST_HANDSHAKE:
                parts[part] = {}
        return declared


class Initialize(msgspec.Struct):
    """The parameters of `initialize`; members that some clients omit are optional."""

    version: str = msgspec.field(name="protocolVersion")
    capabilities: dict[str, Any] | UnsetType = UNSET
    client_info: Raw | UnsetType = msgspec.field(name="clientInfo", default=UNSET)


class McpSessions:
    """
    Creates and reads session ids.

    An id never authenticates. Every request has its own token, and the id is valid only for the
    caller it was created for (SBP25, session hijacking).
    """

    def __init__(self, signer: Signer, *, clock: Callable[[], float] = time.time) -> None:
        self._signer = signer
        self._clock = clock

    def start(self, params: bytes | None, caller: TenantContext) -> tuple[McpSession, str]:
        """Open a session for `initialize`; return it and its id. Raises JsonRpcError."""
        initialize: Initialize = decode_as(Initialize, params)
        session = McpSession(
            version=counter_offer(initialize.version),
            capabilities=_capability_names(initialize.capabilities),
            issued_at=int(self._clock()),
            nonce=secrets.token_bytes(12),
            owner=_owner(caller),
            client=name_of(initialize.client_info),
        )
        return session, self._signer.sign(PURPOSE, msgspec.msgpack.encode(session))

    def find(self, identity: bytes, caller: TenantContext) -> McpSession | None:
        """Return the session if it is open and owned by *caller*, else None without a reason."""
        if len(identity) > ID_CHARACTERS or not identity.isascii():
            return None
        payload = self._signer.verify(PURPOSE, identity.decode("ascii"))
        if payload is None:
            return None
        try:
            session = msgspec.msgpack.decode(payload, type=McpSession)
        except msgspec.DecodeError:
            return None  # signed by a release with another format
        alive = self._clock() < session.issued_at + LIFETIME_S
        return session if alive and session.owner == _owner(caller) else None


def _owner(caller: TenantContext) -> bytes:
    # A client that acts for a user has its own sessions, which end when its access is revoked.
    # JSON keeps different callers apart for all possible ids.
    return hashlib.sha256(msgspec.json.encode((*caller.identity_key, caller.resource))).digest()


# The client capabilities that the server uses; all others are ignored.
USED_CAPABILITIES = {"sampling": ("tools", "context"), "elicitation": ("form", "url"), "roots": ()}


def _capability_names(capabilities: dict[str, Any] | UnsetType) -> tuple[str, ...]:
    """Return client capabilities as short names, because every request carries the id."""
    if capabilities is UNSET:
        return ()
    names = []
    for name, parts in USED_CAPABILITIES.items():
        if name in capabilities:
            names.append(name)
            value = capabilities[name]
            if isinstance(value, dict):
                names += [f"{name}.{part}" for part in parts if part in value]
    return tuple(names)
