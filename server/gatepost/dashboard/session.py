"""Who is signed in: a sealed cookie that names its end, and a list of those that ended before."""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable

import msgspec

from gatepost.keyring import KeyRing
from gatepost.stores.api import Records, SessionRecord
from gatepost_authz.caller import TenantContext
from gatepost_authz.config import Target

PURPOSE, FORMS = "dashboard session", "dashboard form"
RENEWED_S = 60.0
"""How stale the time of the last visit in a cookie may be."""
MOST_COOKIE = 3_800
"""Browsers keep cookies of 4096 bytes, name and attributes included (RFC 6265 section 6.1)."""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """One sign-in. It travels sealed in a cookie, and holds no token; times in seconds."""

    id: bytes
    caller: TenantContext
    """``expires_at`` is the end of the session, and scopes are left out: roles decide here."""
    meaning: bytes
    """Digest of the settings by which the token was read."""
    seen: float
    """About when the visitor last asked for a page."""

    @property
    def key(self) -> bytes:
        """By which the stores know it."""
        return b"dashboard" + self.id


class TooLong(Exception):
    """What is to be remembered of a visitor does not fit a cookie."""


_decoder = msgspec.msgpack.Decoder(Session)


class Sessions:
    """
    Opens, finds, renews and ends them.

    A cookie counts only at the dashboard it was made for, until it is old or idle, while
    *meaning_of* its issuer (a digest; None: it is trusted no more) is what it was, and unless it
    was ended, which the stores remember at every replica.
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

    def start(self, caller: TenantContext) -> Session:
        """A new session with an id that nobody has seen; LookupError for an untrusted issuer."""
        now = self._clock()
        meaning = self._meaning_of(caller)
        if meaning is None:
            raise LookupError(caller.issuer)
        visitor = msgspec.structs.replace(
            caller,
            expires_at=int(now + self._lasts_s),
            scopes=frozenset(),
            # A token that does not say when it was issued is refused for as long as it could live;
            # the visit may last longer, and is as old as its sign-in.
            issued_at=int(now) if caller.issued_at is None else caller.issued_at,
            claims=dict(caller.claims),
            token_id=None,
            shared_audience=False,
        )
        return Session(id=secrets.token_bytes(16), caller=visitor, meaning=meaning, seen=now)

    def sealed(self, session: Session, target: Target) -> str:
        """The cookie's value; TooLong."""
        value = self._keyring.seal(
            PURPOSE, msgspec.msgpack.encode(session), context=target.url.encode()
        )
        if len(value) > MOST_COOKIE:
            raise TooLong
        return value

    async def find(self, cookie: str, target: Target) -> Session | None:
        """The session that *cookie* holds, if it lives; may raise StoreUnavailable."""
        session = self.read(cookie, target)
        if session is None or not self.lives(session) or await self.ended(session):
            return None
        return session

    def read(self, cookie: str, target: Target) -> Session | None:
        """The session that *cookie* holds, whatever has become of it."""
        if not cookie or not cookie.isascii() or len(cookie) > MOST_COOKIE:
            return None
        payload = self._keyring.open(PURPOSE, cookie, context=target.url.encode())
        if payload is None:
            return None
        try:
            return _decoder.decode(payload)
        except msgspec.DecodeError:
            return None  # sealed by a release whose sessions looked different

    def lives(self, session: Session) -> bool:
        """Whether it is neither old nor idle, and its issuer means what it did; asks no store."""
        now = self._clock()
        meaning = self._meaning_of(session.caller)
        return (
            now < session.caller.expires_at
            and now < session.seen + self._idle_s
            and meaning is not None
            and hmac.compare_digest(meaning, session.meaning)
        )

    async def ended(self, session: Session) -> bool:
        """Whether somebody ended it, here or at another replica."""
        record = await self._records.of(session.caller.tenant_id).sessions.get(session.key)
        return record.ended

    async def end(self, session: Session) -> None:
        """End it everywhere, durably; a second time does nothing."""
        sessions = self._records.of(session.caller.tenant_id).sessions
        record = SessionRecord(ended=True)
        await sessions.replace(session.key, record, expires_at=session.caller.expires_at + 60.0)

    def renewed(self, session: Session) -> Session | None:
        """The session as seen now; None while the cookie still says so nearly enough."""
        now = self._clock()
        return (
            msgspec.structs.replace(session, seen=now) if now - session.seen > RENEWED_S else None
        )

    def token(self, session: Session) -> str:
        """
        A token for the forms of this session's pages.

        Sealed anew for every page: a text that is always the same could be guessed letter by letter
        where somebody compresses our pages (BREACH).
        """
        return self._keyring.seal(FORMS, b"", context=session.id)

    def minted(self, session: Session, token: str) -> bool:
        """Whether *token* was made for this session."""
        return token.isascii() and self._keyring.open(FORMS, token, context=session.id) == b""


def digest(*parts: object) -> bytes:
    """Sixteen bytes that differ when any of *parts*, as JSON, does."""
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).digest()[:16]
