"""Sign people in: the page that lists issuers, the redirect to the issuer, and the callback."""

import hashlib
import hmac
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from urllib.parse import urlencode

import msgspec
from starlette.types import Receive, Scope, Send

from gatepost.dashboard.cookie import Cookies
from gatepost.dashboard.dashboard_session import CookieTooLong, DashboardSessions
from gatepost.dashboard.form_data import UnreadableForm, cookie_of, query_of
from gatepost.dashboard.location import DashboardLocation, DashboardPaths, valid_page_path
from gatepost.dashboard.openid import OpenIdClient, SignInAttempt, SignInVerifier
from gatepost.dashboard.page_access import ABSENT, PageRefused
from gatepost.dashboard.page_response import ResponseSender
from gatepost.dashboard.templating import Templates
from gatepost.http.edge import peer_of
from gatepost.secrets.keyring import KeyRing
from gatepost_authz.caller import TenantContext
from gatepost_authz.errors import AuthError, InvalidToken, IssuerUnavailable, RevokedToken
from gatepost_authz.fetch import FetchError
from gatepost_authz.headers import HeaderField
from gatepost_authz.middleware import CALLER
from gatepost_authz.reasons import RULES, UNKNOWN_REASON

PURPOSE = "dashboard sign-in"
SIGN_IN_LIFETIME_S = 600
"""Seconds that a sign-in can take at the issuer."""
AUTHORIZATION_CODE = re.compile(r"[\x21-\x7e]{1,4096}", re.ASCII)
"""An authorization code (RFC 6749 appendix A.11, without spaces)."""
ERROR = re.compile(r"[a-z_]{1,64}", re.ASCII)

log = logging.getLogger(__name__)
_decoder = msgspec.msgpack.Decoder(SignInAttempt)

SIGN_IN_EXPIRED = PageRefused(
    400,
    "Sign-in expired",
    "The sign-in took longer than ten minutes, was already completed, or started in another "
    "browser. Sign in again.",
)
SIGN_IN_REFUSED = PageRefused(403, "Sign-in refused", "The identity provider refused the sign-in.")
UNTRUSTED = PageRefused(
    403,
    "Access denied",
    "You signed in at the identity provider, but this dashboard did not accept the result. "
    "The server's log has the reason.",
)
OWN_ERRORS = {
    "invalid_client": "issuers.dashboard.client_id, client_secret and method",
    "unauthorized_client": "issuers.dashboard.client_id",
    "invalid_scope": "issuers.dashboard.scopes and scopes.baseline",
    "invalid_target": "resource, which the identity provider has to know",
    "invalid_request": "issuers.dashboard",
    "unsupported_grant_type": "issuers.dashboard.client_id",
    "unsupported_response_type": "issuers.dashboard.client_id",
}
"""The OAuth errors about this server (not about the user), and the settings that cause them."""
SWITCHES = {"account": "choose"}
"""The parameter of a sign-in whose user wants to choose the account at the issuer."""
PROVIDER_UNAVAILABLE = PageRefused(
    503,
    "Identity provider unavailable",
    "The identity provider could not be reached. Try again in a moment.",
)


def misconfigured(party: OpenIdClient, error: str) -> PageRefused:
    """Log that the issuer refused this server, and return the page that says so."""
    setting = OWN_ERRORS[error]
    log.error(
        "dashboard_sign_in_misconfigured",
        extra={"issuer": party.issuer, "reason": error, "setting": setting},
    )
    return PageRefused(
        503,
        "Sign-in is misconfigured",
        f"The identity provider refused this server, not you ({error}). "
        f"An administrator of this server has to check the setting {setting}.",
    )


def untrusted(refusal: AuthError) -> PageRefused:
    """Return the page for a user whose tokens were refused; it names the rule."""
    rule = RULES.get(refusal.reason, UNKNOWN_REASON)
    if not rule.setting:
        return UNTRUSTED
    claim = refusal.claim or rule.claim
    reason = f"{rule.rule} (claim {claim}, setting {rule.setting})" if claim else rule.rule
    return PageRefused(UNTRUSTED.status, UNTRUSTED.title, f"{UNTRUSTED.sentence} {reason}")


class SignInServices(msgspec.Struct, frozen=True, kw_only=True):
    """The objects that the steps of a sign-in share."""

    location: DashboardLocation
    parties: Callable[[DashboardPaths], Mapping[str, OpenIdClient]]
    """The issuers of a dashboard by a short name for links, the preferred one first."""
    verifier: SignInVerifier
    sessions: DashboardSessions
    cookies: Cookies
    view: Templates
    keyring: KeyRing
    baseline: tuple[str, ...]
    failed: Callable[[Scope, AuthError], None]
    """Called with credentials that were refused."""
    slow_down: Callable[[Scope], None]
    """Raises EdgeRefusal for a peer with too many refused credentials."""
    note: Callable[[str, TenantContext, str], Awaitable[None]]
    """Records a sign-in or sign-out with the user's address, durably."""


ServeSignIn = Callable[[SignInServices, DashboardPaths, Scope, ResponseSender], Awaitable[None]]


class SignInStep:
    """Serve one public step of the sign-in: an ASGI app for GET."""

    def __init__(self, step: ServeSignIn, gateway: SignInServices) -> None:
        self._step = step
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = self._gateway
        reply = ResponseSender(send, head=scope["method"] == "HEAD")
        paths = gateway.location.locate(scope["path"])
        base = paths.base if paths else ""
        try:
            if paths is None:
                raise ABSENT
            if scope["method"] not in {"GET", "HEAD"}:
                raise PageRefused(
                    405, "Method not allowed", "This URL does not accept this request method."
                )
            await self._step(gateway, paths, scope, reply)
        except PageRefused as turned:
            retry_url = f"{base}/sign-in?{urlencode(SWITCHES)}" if paths else ""
            html = gateway.view.bare("error.html", base, turned=turned, back=retry_url)
            extra_headers = ((b"allow", b"GET, HEAD"),) if turned.status == 405 else ()
            await reply.html(turned.status, html, extra_headers)
        except UnreadableForm as fault:
            unread = PageRefused(fault.status, "Request not readable", fault.sentence)
            html = gateway.view.bare("error.html", base, turned=unread, back="")
            await reply.html(fault.status, html)


async def choose(
    gateway: SignInServices, paths: DashboardPaths, scope: Scope, reply: ResponseSender
) -> None:
    """Show a link for each issuer; the user chooses before any redirect."""
    query = query_of(scope["query_string"])
    shared = {
        "next": valid_page_path(query.get("next", "")),
        **(SWITCHES if switches(query) else {}),
    }
    links = {
        urlencode({"issuer": name, **shared}): party.issuer
        for name, party in gateway.parties(paths).items()
    }
    html = gateway.view.bare("signin.html", paths.base, issuers=links)
    await reply.html(200, html)


async def signed_out(
    gateway: SignInServices, paths: DashboardPaths, scope: Scope, reply: ResponseSender
) -> None:
    """Show the page after the sign-out."""
    retry_url = f"{paths.base}/sign-in?{urlencode(SWITCHES)}"
    await reply.html(200, gateway.view.bare("signedout.html", paths.base, again=retry_url))


async def missing(
    gateway: SignInServices, paths: DashboardPaths, scope: Scope, reply: ResponseSender
) -> None:
    """Answer 404 for any other path below the base."""
    raise ABSENT


async def begin(
    gateway: SignInServices, paths: DashboardPaths, scope: Scope, reply: ResponseSender
) -> None:
    """Redirect to the issuer, and set the cookie that the callback must match."""
    query = query_of(scope["query_string"])
    party = gateway.parties(paths).get(query.get("issuer", ""))
    if party is None:
        raise ABSENT
    attempt = party.attempt(valid_page_path(query.get("next", "")), switches=switches(query))
    callback = gateway.location.callback(paths)
    try:
        address = await party.address(attempt, paths.target, callback, gateway.baseline)
    except FetchError as error:
        log.warning(
            "dashboard_sign_in_failed", extra={"issuer": party.issuer, "reason": error.reason}
        )
        raise PROVIDER_UNAVAILABLE from error
    payload = msgspec.msgpack.encode(attempt)
    sealed = gateway.keyring.seal(PURPOSE, payload, context=paths.target.url.encode())
    cookie = gateway.cookies.header("sign-in", paths.target, sealed, age=SIGN_IN_LIFETIME_S)
    await reply.redirect(address, (cookie,))


async def finish(
    gateway: SignInServices, paths: DashboardPaths, scope: Scope, reply: ResponseSender
) -> None:
    """
    Check that the callback belongs to this browser's sign-in, and open a session.

    The checks follow the attacks: state first (login CSRF, RFC 6749 section 10.12), then the sender
    (mix-up, RFC 9207), and only then the code.
    """
    # Each callback causes a request to the issuer, so invented codes must be limited.
    gateway.slow_down(scope)
    query = query_of(scope["query_string"])
    attempt = under_way(gateway, paths, scope)
    party = party_of(gateway, paths, attempt) if attempt else None
    if attempt is None or party is None:
        raise SIGN_IN_EXPIRED
    if not hmac.compare_digest(query.get("state", "").encode(), attempt.state.encode()):
        raise SIGN_IN_EXPIRED
    try:
        caller, identity = await _identified(gateway, party, attempt, paths, query)
    except FetchError as error:
        error_code = error.error or ("invalid_client" if error.status == 401 else "")
        if error_code in OWN_ERRORS:
            # This counts as a failure, because made-up codes could cause requests without end.
            gateway.failed(scope, InvalidToken("refused_client").with_details(issuer=party.issuer))
            raise misconfigured(party, error_code) from error
        log.warning(
            "dashboard_sign_in_failed", extra={"issuer": party.issuer, "reason": str(error)}
        )
        if error.status == 400:
            gateway.failed(scope, InvalidToken("bad_code").with_details(issuer=party.issuer))
            raise UNTRUSTED from error
        raise PROVIDER_UNAVAILABLE from error
    except IssuerUnavailable as error:
        gateway.failed(scope, error)
        log.warning(
            "dashboard_sign_in_failed", extra={"issuer": party.issuer, "reason": error.reason}
        )
        raise PROVIDER_UNAVAILABLE from error
    except AuthError as refusal:
        gateway.failed(scope, refusal.with_details(issuer=party.issuer))
        log.warning(
            "dashboard_sign_in_refused", extra={"issuer": party.issuer, "reason": refusal.reason}
        )
        raise untrusted(refusal) from refusal
    cookies = await _start_session(gateway, paths, scope, caller, identity)
    await reply.redirect(paths.base + attempt.return_to, cookies)


def switches(query: Mapping[str, str]) -> bool:
    """Return whether the user wants to choose the account."""
    return SWITCHES.items() <= query.items()


def under_way(gateway: SignInServices, paths: DashboardPaths, scope: Scope) -> SignInAttempt | None:
    """Return the sign-in that this browser started, unless it expired."""
    name = gateway.cookies.name("sign-in", paths.target)
    cookie = cookie_of(scope["headers"], name)
    if not cookie.isascii():
        return None
    payload = gateway.keyring.open(PURPOSE, cookie, context=paths.target.url.encode())
    if payload is None:
        return None
    try:
        attempt = _decoder.decode(payload)
    except msgspec.DecodeError:
        return None
    return attempt if 0 <= time.time() - attempt.began < SIGN_IN_LIFETIME_S else None


def party_of(
    gateway: SignInServices, paths: DashboardPaths, attempt: SignInAttempt
) -> OpenIdClient | None:
    """Return the issuer of the sign-in, if it is still configured."""
    return gateway.parties(paths).get(short_name(attempt.issuer))


async def _identified(
    gateway: SignInServices,
    party: OpenIdClient,
    attempt: SignInAttempt,
    paths: DashboardPaths,
    query: Mapping[str, str],
) -> tuple[TenantContext, str]:
    """Return the person, and the ID token if the sign-out will need it."""
    sender = query.get("iss")
    # An error contains nothing that another issuer could steal, and some issuers omit its `iss`.
    if sender is None and "error" not in query and await party.names_itself():
        raise InvalidToken("no_sender")
    if sender is not None and sender != party.issuer:
        # Another issuer answered in place of this one, and would get our code and secret.
        raise InvalidToken("wrong_sender")
    if "error" in query:
        error = query["error"] if ERROR.fullmatch(query["error"]) else "unreadable"
        if error in OWN_ERRORS:
            raise misconfigured(party, error)
        log.info("dashboard_sign_in_declined", extra={"issuer": party.issuer, "reason": error})
        raise SIGN_IN_REFUSED
    code = query.get("code", "")
    if not AUTHORIZATION_CODE.fullmatch(code):
        raise SIGN_IN_EXPIRED
    callback = gateway.location.callback(paths)
    tokens = await party.redeem(code, attempt, paths.target, callback)
    person = await gateway.verifier.identify(tokens, party, attempt, paths.target)
    return person, await party.hint(tokens.identity)


async def _start_session(
    gateway: SignInServices,
    paths: DashboardPaths,
    scope: Scope,
    caller: TenantContext,
    identity: str,
) -> Sequence[HeaderField]:
    """Open a session; return its cookies."""
    sessions, cookies, target = gateway.sessions, gateway.cookies, paths.target
    try:
        session = sessions.start(caller)
        value = sessions.sealed(session, target)
    except (LookupError, CookieTooLong) as error:
        log.warning(
            "dashboard_sign_in_failed",
            extra={"issuer": caller.issuer, "reason": type(error).__name__},
        )
        raise UNTRUSTED from error
    if not sessions.lives(session):
        # The token is valid, but its owner is revoked or its tenant is suspended.
        refusal = RevokedToken("revoked_or_suspended").with_details(
            issuer=caller.issuer, tenant=caller.tenant_id
        )
        gateway.failed(scope, refusal)
        log.warning(
            "dashboard_sign_in_refused",
            extra={"issuer": caller.issuer, "reason": "revoked_or_suspended"},
        )
        raise UNTRUSTED
    # End the earlier session of this browser (session fixation).
    before = sessions.read(cookie_of(scope["headers"], cookies.name("session", target)), target)
    if before is not None and sessions.lives(before):
        await sessions.end(before)
    await gateway.note("signed_in", caller, peer_of(scope))
    scope[CALLER] = session.caller
    cookie_headers = [cookies.header("session", target, value), cookies.removal("sign-in", target)]
    hint = sessions.sealed_identity(session, identity) if identity else ""
    if hint:
        cookie_headers.append(cookies.header("identity", target, hint))
    return cookie_headers


def short_name(issuer: str) -> str:
    """Return a short, stable name of an issuer for links."""
    return hashlib.sha256(issuer.encode()).hexdigest()[:12]
