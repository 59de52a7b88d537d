"""Keep the browser's cookie: the person who signed in, and the browser that a form was shown in."""

import re
import secrets
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gatepost_keys.issuer.authlib_records import SignIn
from gatepost_keys.issuer.settings import MOUNT
from gatepost_keys.issuer.state import DevelopmentIssuer, digest

SESSION_S = 8 * 3600
ID = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)


class BrowserSession(msgspec.Struct, frozen=True):
    """One browser: its id, and the person who signed in, if any."""

    id: str
    sign_in: SignIn | None


def cookie_name(issuer: DevelopmentIssuer) -> str:
    """Return the cookie's name, which contains the port to separate issuers on one machine."""
    return f"gatepost-dev-{urlsplit(issuer.settings.issuer).port or 80}"


def session_of(request: Request, issuer: DevelopmentIssuer) -> BrowserSession:
    """Return the browser's session, or a new one without a user."""
    cookie = request.cookies.get(cookie_name(issuer), "")
    if not ID.fullmatch(cookie):
        return BrowserSession(secrets.token_urlsafe(32), None)
    sign_in = issuer.sessions.get(digest(cookie))
    if sign_in is not None and issuer.now() - sign_in.auth_time >= SESSION_S:
        sign_in = None
    return BrowserSession(cookie, sign_in)


def start(issuer: DevelopmentIssuer, sign_in: SignIn) -> BrowserSession:
    """Return a session under a new id: one planted before the sign-in must not become signed in."""
    session = BrowserSession(secrets.token_urlsafe(32), sign_in)
    issuer.sessions.put(digest(session.id), sign_in)
    return session


def set_session_cookie(
    response: Response, session: BrowserSession, issuer: DevelopmentIssuer
) -> Response:
    """
    Give the browser its id. Lax: it comes along when a client sends the browser here, and not with
    a form that a foreign page submits.
    """
    response.set_cookie(
        cookie_name(issuer),
        session.id,
        path=MOUNT,
        httponly=True,
        samesite="lax",
        max_age=SESSION_S,
    )
    return response
