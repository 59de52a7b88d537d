"""The handshake of the older revisions, and its sessions: signed ids, bound to their caller."""

import hashlib
import secrets
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from gatepost.mcp.era import NEWEST_HANDSHAKE, counter_offer
from gatepost.mcp.params import decode_as
from gatepost.tools.client import Capabilities
from gatepost_authz.caller import TenantContext

PURPOSE = "session"

# A client whose session ends starts over by itself (404), so this only bounds how long an id that
# leaked together with a token stays useful.
LIFETIME_S = 7 * 86_400
ID_CHARACTERS = 4096


class Signer(Protocol):
    """The part of the key ring that sessions need."""

    def sign(self, purpose: str, payload: bytes) -> str:
        """The payload with its proof, in characters a header may hold."""

    def verify(self, purpose: str, token: str) -> bytes | None:
        """The payload that was signed for this purpose; None for anything else."""


class Session(msgspec.Struct, frozen=True, array_like=True):
    """What one handshake settled; it travels inside the session id, so no replica stores it."""

    version: str
    capabilities: tuple[str, ...]
    """Client capabilities, as `sampling`, `elicitation`, `elicitation.url`, …"""
    issued_at: int
    nonce: bytes
    owner: bytes
    """Digest of the caller it belongs to."""

    @property
    def key(self) -> bytes:
        """What the stores know it by."""
        return self.nonce + self.owner

    @property
    def declared(self) -> Capabilities:
        """The capabilities of its client that its revision has (L-04)."""
        declared: dict[str, dict[str, Any]] = {}
        for name in self.capabilities:
            feature, _, part = name.partition(".")
            if feature == "elicitation" and self.version == "2025-03-26":
                continue
            parts = declared.setdefault(feature, {})
            # Before 2025-11-25 there are forms only, and sampling without tools.
            if part and self.version == NEWEST_HANDSHAKE:
                parts[part] = {}
        return declared


class Initialize(msgspec.Struct):
    """The parameters of `initialize`; what some clients leave out may be missing."""

    version: str = msgspec.field(name="protocolVersion")
    capabilities: dict[str, Any] | UnsetType = UNSET


class Sessions:
    """
    Mints and reads session ids.

    An id never authenticates: every request brings its own token, and the id counts only together
    with the caller it was made for (SBP25, session hijacking).
    """

    def __init__(self, signer: Signer, *, clock: Callable[[], float] = time.time) -> None:
        self._signer = signer
        self._clock = clock

    def start(self, params: bytes | None, caller: TenantContext) -> tuple[Session, str]:
        """Open a session as `initialize` asks; the session and its id. Raises Refused."""
        asked: Initialize = decode_as(Initialize, params)
        session = Session(
            version=counter_offer(asked.version),
            capabilities=_named(asked.capabilities),
            issued_at=int(self._clock()),
            nonce=secrets.token_bytes(12),
            owner=_owner(caller),
        )
        return session, self._signer.sign(PURPOSE, msgspec.msgpack.encode(session))

    def find(self, identity: bytes, caller: TenantContext) -> Session | None:
        """The session of this id if it lives and is *caller*'s; nobody learns which it lacks."""
        if len(identity) > ID_CHARACTERS or not identity.isascii():
            return None
        payload = self._signer.verify(PURPOSE, identity.decode("ascii"))
        if payload is None:
            return None
        try:
            session = msgspec.msgpack.decode(payload, type=Session)
        except msgspec.DecodeError:
            return None  # signed by a release whose sessions looked different
        alive = self._clock() < session.issued_at + LIFETIME_S
        return session if alive and session.owner == _owner(caller) else None


def _owner(caller: TenantContext) -> bytes:
    # Whoever acts for somebody has sessions of its own, which end when it is shut out. As JSON, so
    # that no choice of ids makes two different callers the same.
    acting = () if caller.actor is None else (caller.actor,)
    return hashlib.sha256(
        msgspec.json.encode((*caller.principal_key, caller.client_id, caller.resource, *acting))
    ).digest()


# What later features ask a client for; anything else it can do is of no use here.
KNOWN = {"sampling": ("tools", "context"), "elicitation": ("form", "url"), "roots": ()}


def _named(capabilities: dict[str, Any] | UnsetType) -> tuple[str, ...]:
    """Client capabilities as short names: the id travels in every request."""
    if capabilities is UNSET:
        return ()
    names = []
    for name, parts in KNOWN.items():
        if name in capabilities:
            names.append(name)
            value = capabilities[name]
            if isinstance(value, dict):
                names += [f"{name}.{part}" for part in parts if part in value]
    return tuple(names)
