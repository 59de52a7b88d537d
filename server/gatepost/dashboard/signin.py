"""How people get in: the page that offers issuers, the way there, and the way back."""

import hashlib
import hmac
import re
import time
from collections.abc import Awaitable, Callable, Mapping

import msgspec
import structlog
from starlette.types import Receive, Scope, Send

from gatepost.dashboard.cookie import Cookies
from gatepost.dashboard.form import Unreadable, cookie_of, query_of
from gatepost.dashboard.frame import ABSENT, Turned
from gatepost.dashboard.openid import Attempt, Bouncer, Party
from gatepost.dashboard.place import Place, Spot, below
from gatepost.dashboard.reply import Reply
from gatepost.dashboard.session import Sessions, TooLong
from gatepost.dashboard.view import View
from gatepost.keyring import KeyRing
from gatepost.scope import peer_of
from gatepost_authz.caller import TenantContext
from gatepost_authz.errors import AuthError, InvalidToken, IssuerUnavailable
from gatepost_authz.fetch import FetchError
from gatepost_authz.middleware import CALLER

PURPOSE = "dashboard sign-in"
LASTS_S = 600
"""How long somebody may be away at the issuer."""
CODE = re.compile(r"[\x21-\x7e]{1,4096}", re.ASCII)
"""An authorization code (RFC 6749 appendix A.11, without spaces)."""
ERROR = re.compile(r"[a-z_]{1,64}", re.ASCII)

log = structlog.get_logger("gatepost.dashboard")
_decoder = msgspec.msgpack.Decoder(Attempt)

STALE = Turned(
    400,
    "This sign-in is over",
    "It took longer than ten minutes, was finished already, or began in another browser. "
    "Begin again.",
)
DECLINED = Turned(403, "You were not signed in", "The identity provider did not let you through.")
UNTRUSTED = Turned(
    403,
    "You cannot be signed in here",
    "The identity provider let you through, but what it says of you does not open this dashboard. "
    "The server's log says why.",
)
AWAY = Turned(
    503,
    "The identity provider cannot be reached",
    "Nothing is wrong with your account. Try again in a moment.",
)


class Gateway(msgspec.Struct, frozen=True, kw_only=True):
    """What the steps of a sign-in share."""

    place: Place
    parties: Callable[[Spot], Mapping[str, Party]]
    """The issuers of a dashboard by a short name for links, the preferred one first."""
    bouncer: Bouncer
    sessions: Sessions
    cookies: Cookies
    view: View
    keyring: KeyRing
    baseline: tuple[str, ...]
    failed: Callable[[Scope, AuthError], None]
    """Hears of credentials that were no good."""
    slow_down: Callable[[Scope], None]
    """Raises Refusal for a peer of whom it heard that too often."""
    note: Callable[[str, TenantContext, str], Awaitable[None]]
    """Puts a sign-in or a sign-out on record, and from which address, durably."""


Step = Callable[[Gateway, Spot, Scope, Reply], Awaitable[None]]


class Door:
    """A step of the sign-in, open to everybody: an ASGI app for GET."""

    def __init__(self, step: Step, gateway: Gateway) -> None:
        self._step = step
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = self._gateway
        reply = Reply(send, head=scope["method"] == "HEAD")
        spot = gateway.place.locate(scope["path"])
        base = spot.base if spot else ""
        try:
            if spot is None:
                raise ABSENT
            if scope["method"] not in {"GET", "HEAD"}:
                raise Turned(405, "Not like this", "This address cannot be used in that way.")
            await self._step(gateway, spot, scope, reply)
        except Turned as turned:
            again = f"{base}/sign-in" if spot else ""
            html = gateway.view.bare("error.html", base, turned=turned, back=again)
            more = ((b"allow", b"GET, HEAD"),) if turned.status == 405 else ()
            await reply.html(turned.status, html, more)
        except Unreadable as fault:
            unread = Turned(fault.status, "This cannot be read", fault.sentence)
            html = gateway.view.bare("error.html", base, turned=unread, back="")
            await reply.html(fault.status, html)


async def choose(gateway: Gateway, spot: Spot, scope: Scope, reply: Reply) -> None:
    """The page with a link for each issuer: nobody is sent anywhere without having asked."""
    onward = below(query_of(scope["query_string"]).get("next", ""))
    names = {name: party.issuer for name, party in gateway.parties(spot).items()}
    html = gateway.view.bare("signin.html", spot.base, issuers=names, onward=onward)
    await reply.html(200, html)


async def signed_out(gateway: Gateway, spot: Spot, scope: Scope, reply: Reply) -> None:
    """The page after the sign-out."""
    await reply.html(200, gateway.view.bare("signedout.html", spot.base))


async def missing(gateway: Gateway, spot: Spot, scope: Scope, reply: Reply) -> None:
    """Any other path below the base."""
    raise ABSENT


async def begin(gateway: Gateway, spot: Spot, scope: Scope, reply: Reply) -> None:
    """Send the browser to the issuer, with a cookie that its answer must meet again."""
    query = query_of(scope["query_string"])
    party = gateway.parties(spot).get(query.get("issuer", ""))
    if party is None:
        raise ABSENT
    attempt = party.attempt(below(query.get("next", "")))
    callback = gateway.place.callback(spot)
    try:
        address = await party.address(attempt, spot.target, callback, gateway.baseline)
    except FetchError as error:
        log.warning("dashboard_sign_in_failed", issuer=party.issuer, reason=error.reason)
        raise AWAY from error
    payload = msgspec.msgpack.encode(attempt)
    sealed = gateway.keyring.seal(PURPOSE, payload, context=spot.target.url.encode())
    cookie = gateway.cookies.header("sign-in", spot.target, sealed, age=LASTS_S)
    await reply.redirect(address, (cookie,))


async def finish(gateway: Gateway, spot: Spot, scope: Scope, reply: Reply) -> None:
    """
    The way back: check that the answer belongs to this browser's sign-in, and open a session.

    The order is that of the attacks: state first (login CSRF, RFC 6749 section 10.12), then who
    answers (mix-up, RFC 9207), and only then is a code of any use.
    """
    # Each answer makes us ask the issuer: a made-up code must not do so without end.
    gateway.slow_down(scope)
    query = query_of(scope["query_string"])
    attempt = under_way(gateway, spot, scope)
    party = party_of(gateway, spot, attempt) if attempt else None
    if attempt is None or party is None:
        raise STALE
    if not hmac.compare_digest(query.get("state", "").encode(), attempt.state.encode()):
        raise STALE
    try:
        caller = await _identified(gateway, party, attempt, spot, query)
    except FetchError as error:
        log.warning("dashboard_sign_in_failed", issuer=party.issuer, reason=str(error))
        if error.status in {400, 401}:
            # 400: the code is no good. 401: our own credentials are not, and the log says so.
            gateway.failed(scope, InvalidToken("bad_code"))
            raise UNTRUSTED from error
        raise AWAY from error
    except IssuerUnavailable as error:
        log.warning("dashboard_sign_in_failed", issuer=party.issuer, reason=error.reason)
        raise AWAY from error
    except AuthError as refusal:
        gateway.failed(scope, refusal)
        log.warning("dashboard_sign_in_refused", issuer=party.issuer, reason=refusal.reason)
        raise UNTRUSTED from refusal
    await _welcome(gateway, spot, scope, reply, caller, attempt.onward)


def under_way(gateway: Gateway, spot: Spot, scope: Scope) -> Attempt | None:
    """The sign-in that this browser began, unless it is too long ago."""
    name = gateway.cookies.name("sign-in", spot.target)
    cookie = cookie_of(scope["headers"], name)
    if not cookie.isascii():
        return None
    payload = gateway.keyring.open(PURPOSE, cookie, context=spot.target.url.encode())
    if payload is None:
        return None
    try:
        attempt = _decoder.decode(payload)
    except msgspec.DecodeError:
        return None
    return attempt if 0 <= time.time() - attempt.began < LASTS_S else None


def party_of(gateway: Gateway, spot: Spot, attempt: Attempt) -> Party | None:
    """The issuer that was asked, if it may still be."""
    return gateway.parties(spot).get(short(attempt.issuer))


async def _identified(
    gateway: Gateway, party: Party, attempt: Attempt, spot: Spot, query: Mapping[str, str]
) -> TenantContext:
    sender = query.get("iss")
    if sender is None and await party.names_itself():
        raise InvalidToken("no_sender")
    if sender is not None and sender != party.issuer:
        # Another issuer answers in this one's place and would be sent our code and secret.
        raise InvalidToken("wrong_sender")
    if "error" in query:
        told = query["error"] if ERROR.fullmatch(query["error"]) else "unreadable"
        log.info("dashboard_sign_in_declined", issuer=party.issuer, reason=told)
        raise DECLINED
    code = query.get("code", "")
    if not CODE.fullmatch(code):
        raise STALE
    callback = gateway.place.callback(spot)
    tokens = await party.redeem(code, attempt, spot.target, callback)
    return await gateway.bouncer.identify(tokens, party, attempt, spot.target)


async def _welcome(
    gateway: Gateway, spot: Spot, scope: Scope, reply: Reply, caller: TenantContext, onward: str
) -> None:
    sessions, cookies, target = gateway.sessions, gateway.cookies, spot.target
    try:
        session = sessions.start(caller)
        value = sessions.sealed(session, target)
    except (LookupError, TooLong) as error:
        log.warning("dashboard_sign_in_failed", issuer=caller.issuer, reason=type(error).__name__)
        raise UNTRUSTED from error
    if not sessions.lives(session):
        # Cut off, or of a tenant that is suspended: the token is good and its owner is not.
        log.warning("dashboard_sign_in_refused", issuer=caller.issuer, reason="cut_off")
        raise UNTRUSTED
    # Whoever was signed in before in this browser is so no more (session fixation).
    before = sessions.read(cookie_of(scope["headers"], cookies.name("session", target)), target)
    if before is not None and sessions.lives(before):
        await sessions.end(before)
    await gateway.note("signed_in", caller, peer_of(scope))
    scope[CALLER] = session.caller
    more = (cookies.header("session", target, value), cookies.removal("sign-in", target))
    await reply.redirect(spot.base + onward, more)


def short(issuer: str) -> str:
    """A name for an issuer in links: fixed, and without its characters."""
    return hashlib.sha256(issuer.encode()).hexdigest()[:12]
