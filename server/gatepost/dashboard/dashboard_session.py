"""Sessions: an encrypted cookie with an expiry, and a list of sessions that ended earlier."""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable

import msgspec

from gatepost.secrets.keyring import KeyRing
from gatepost.storage.records import Records
from gatepost.storage.sessions import SessionRecord
from gatepost_authz.caller import TenantContext
from gatepost_authz.protected_resource import Target

PURPOSE, FORMS, IDENTITY = "dashboard session", "dashboard form", "dashboard identity"
RENEWED_S = 60.0
"""Seconds by which the last page view in a cookie can be out of date."""
MAX_COOKIE = 3_800
"""Browsers keep cookies of 4096 bytes, name and attributes included (RFC 6265 section 6.1)."""


class SignedInSession(msgspec.Struct, frozen=True, kw_only=True):
    """One sign-in, encrypted in a cookie without any token; times in seconds."""

    id: bytes
    caller: TenantContext
    """``expires_at`` is the end of the session. Scopes are omitted, because roles decide here."""
    meaning: bytes
    """Digest of the settings by which the token was read."""
    seen: float
    """The approximate time of the last page view."""

    @property
    def key(self) -> bytes:
        """Return the key of the session in the stores."""
        return b"dashboard" + self.id


class CookieTooLong(Exception):
    """The session does not fit into a cookie."""


_decoder = msgspec.msgpack.Decoder(SignedInSession)


class DashboardSessions:
    """
    Open, find, renew and end sessions.

    A cookie is valid only at the dashboard that it was made for, and until it is too old or idle.
    It becomes invalid when *meaning_of* its issuer changes (a digest; None for an issuer that is no
    longer trusted), and when the session is ended, which the stores keep for all replicas.
    """

    def __init__(
        self,
        keyring: KeyRing,
        records: Records,
        *,
        lasts_s: float,
        idle_s: float,
        meaning_of: Callable[[TenantContext], bytes | None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keyring = keyring
        self._records = records
        self._lasts_s = lasts_s
        self._idle_s = idle_s
        self._meaning_of = meaning_of
        self._clock = clock

    def start(self, caller: TenantContext) -> SignedInSession:
        """Return a new session with a random id; LookupError for an untrusted issuer."""
        now = self._clock()
        meaning = self._meaning_of(caller)
        if meaning is None:
            raise LookupError(caller.issuer)
        user = msgspec.structs.replace(
            caller,
            expires_at=int(now + self._lasts_s),
            scopes=frozenset(),
            # A revocation refuses tokens without `iat` for the longest possible token lifetime.
            # A session can last longer, so its age counts from the sign-in.
            issued_at=int(now) if caller.issued_at is None else caller.issued_at,
            claims=dict(caller.claims),
            token_id=None,
            shared_audience=False,
        )
        return SignedInSession(id=secrets.token_bytes(16), caller=user, meaning=meaning, seen=now)

    def sealed(self, session: SignedInSession, target: Target) -> str:
        """Return the cookie's value; CookieTooLong."""
        value = self._keyring.seal(
            PURPOSE, msgspec.msgpack.encode(session), context=target.url.encode()
        )
        if len(value) > MAX_COOKIE:
            raise CookieTooLong
        return value

    async def find(self, cookie: str, target: Target) -> SignedInSession | None:
        """Return the session in *cookie* if it is valid; may raise StoreUnavailable."""
        session = self.read(cookie, target)
        if session is None or not self.lives(session) or await self.has_ended(session):
            return None
        return session

    def read(self, cookie: str, target: Target) -> SignedInSession | None:
        """Return the session in *cookie* without checking whether it is still valid."""
        if not cookie or not cookie.isascii() or len(cookie) > MAX_COOKIE:
            return None
        payload = self._keyring.open(PURPOSE, cookie, context=target.url.encode())
        if payload is None:
            return None
        try:
            return _decoder.decode(payload)
        except msgspec.DecodeError:
            return None  # written by a release with another session format

    def lives(self, session: SignedInSession) -> bool:
        """
        Return whether the session is neither old nor idle and its issuer is unchanged; reads no
        store.
        """
        now = self._clock()
        meaning = self._meaning_of(session.caller)
        return (
            now < session.caller.expires_at
            and now < session.seen + self._idle_s
            and meaning is not None
            and hmac.compare_digest(meaning, session.meaning)
        )

    async def has_ended(self, session: SignedInSession) -> bool:
        """Return whether the session was ended, at any replica."""
        record = await self._records.for_tenant(session.caller.tenant_id).sessions.get(session.key)
        return record.ended

    async def end(self, session: SignedInSession) -> None:
        """End the session at all replicas, durably; ending it twice is harmless."""
        sessions = self._records.for_tenant(session.caller.tenant_id).sessions
        record = SessionRecord(ended=True)
        await sessions.replace(session.key, record, expires_at=session.caller.expires_at + 60.0)

    def renewed(self, session: SignedInSession) -> SignedInSession | None:
        """
        Return the session with a new time of the last page view; None while the cookie is recent
        enough.
        """
        now = self._clock()
        return (
            msgspec.structs.replace(session, seen=now) if now - session.seen > RENEWED_S else None
        )

    def sealed_identity(self, session: SignedInSession, token: str) -> str:
        """
        Return the cookie's value with the ID token of *session*; empty if it is too long.

        Only the sign-out at the issuer uses it: it says whose session is to end there.
        """
        value = self._keyring.seal(IDENTITY, token.encode(), context=session.id)
        return value if len(value) <= MAX_COOKIE else ""

    def identity(self, session: SignedInSession, cookie: str) -> str:
        """Return the ID token in *cookie*, if it is the one of *session*."""
        if not cookie or not cookie.isascii() or len(cookie) > MAX_COOKIE:
            return ""
        return (self._keyring.open(IDENTITY, cookie, context=session.id) or b"").decode()

    def token(self, session: SignedInSession) -> str:
        """
        Return a token for the forms of this session's pages.

        Each page gets a new token: a constant text could be guessed letter by letter where
        responses are compressed (BREACH).
        """
        return self._keyring.seal(FORMS, b"", context=session.id)

    def minted(self, session: SignedInSession, token: str) -> bool:
        """Return whether *token* was made for this session."""
        return token.isascii() and self._keyring.open(FORMS, token, context=session.id) == b""


def digest(*parts: object) -> bytes:
    """Return sixteen bytes that differ when any of *parts*, as JSON, differs."""
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).digest()[:16]
