"""
Serve the authorization endpoint (RFC 6749 section 3.1): check the request and choose the page.
"""

import re
from typing import Any
from urllib.parse import urlencode

import msgspec
from authlib.oauth2 import rfc6749  # type: ignore[import-untyped]
from starlette.requests import Request
from starlette.responses import Response

from gatepost_keys.issuer import redirects, wire
from gatepost_keys.issuer.authlib_records import RegisteredClient, SignIn
from gatepost_keys.issuer.authorization_server import (
    IDENTITY,
    AuthorizationServer,
    IssuerResponse,
    RequestForm,
)
from gatepost_keys.issuer.browser_session import BrowserSession, session_of, set_session_cookie
from gatepost_keys.issuer.issuer_endpoint import RouteHandler
from gatepost_keys.issuer.pages import Pages
from gatepost_keys.issuer.settings import ACR_VALUES

# Longer numbers mean no limit at all, and Python refuses to parse numbers of thousands of digits.
SECONDS = re.compile(r"[0-9]{1,15}", re.ASCII)


class UnusableRequest(Exception):
    """Raised for a request of an unknown client, which gets a page instead of a redirect."""

    def __init__(self, title: str, sentence: str, hint: str = "") -> None:
        super().__init__(sentence)
        self.title = title
        self.sentence = sentence
        self.hint = hint


class AuthorizationReview(msgspec.Struct, frozen=True, kw_only=True):
    """An authorization request that may be shown to a person."""

    form: RequestForm
    client: RegisteredClient
    redirect_uri: str
    scopes: tuple[str, ...]
    resource: str
    grant: Any
    """Authlib's grant object, which has checked the request."""

    @property
    def prompt(self) -> frozenset[str]:
        return frozenset(self.form.values.get("prompt", "").split())

    @property
    def acr(self) -> str:
        """
        Return the first way to sign in that the client asks for and that exists here, else none.
        """
        requested = self.form.values.get("acr_values", "").split()
        return next((value for value in requested if value in ACR_VALUES), "")

    def query(self, *leave_out: str) -> str:
        """Return the request as a query again, without the parameters in *leave_out*."""
        items = [item for item in self.form.values.items() if item[0] not in leave_out]
        return urlencode([*items, *(("resource", value) for value in self.form.resources)])

    def satisfied(self, sign_in: SignIn, now: float) -> bool:
        """Return whether *sign_in* is new and strong enough (`prompt`, `max_age`, `acr_values`)."""
        max_age = self.form.values.get("max_age", "")
        too_old = bool(SECONDS.fullmatch(max_age)) and now - sign_in.auth_time > int(max_age)
        must_sign_in_again = self.prompt & {"login", "select_account"}
        return not (must_sign_in_again or too_old or (self.acr and self.acr != sign_in.acr))


def review(server: AuthorizationServer, form: RequestForm) -> AuthorizationReview:
    """
    Check an authorization request.

    UnusableRequest until client and redirect address are known good; after that an OAuth2Error that
    carries the redirect address. A redirect to an unchecked address would make this issuer send
    people and their codes wherever a link says (RFC 6749 section 4.1.2.1).
    """
    values = form.values
    client = server.query_client(values.get("client_id", ""))
    if client is None:
        raise UnusableRequest(
            "This application is not known here",
            "It has not registered with this issuer, or the issuer was restarted since.",
            "Development registrations live in memory: let the application register again "
            "(in most clients: remove the server and add it once more).",
        )
    redirect_uri = values.get("redirect_uri") or client.get_default_redirect_uri()
    if redirect_uri is None or not client.check_redirect_uri(redirect_uri):
        raise UnusableRequest(
            "The way back is not registered",
            "The application asks to be answered at an address that it has not registered.",
            "The redirect_uri must be one of those registered, byte for byte; "
            "only the port may differ on this computer.",
        )
    if values.get("response_type") != "code":
        error = rfc6749.UnsupportedResponseTypeError if "response_type" in values else None
        kind = error("") if error else rfc6749.InvalidRequestError("response_type is required")
        kind.redirect_uri, kind.state = redirect_uri, values.get("state")
        raise kind
    grant = server.get_consent_grant(form)
    return AuthorizationReview(
        form=form,
        client=client,
        redirect_uri=grant.redirect_uri,
        scopes=tuple(grant.request.scope.split()),
        resource=grant.request.resource,
        grant=grant,
    )


def decide(
    server: AuthorizationServer, review: AuthorizationReview, sign_in: SignIn | None
) -> Response:
    """Send the browser back with a code, or with `access_denied` where *sign_in* is None."""
    request = review.grant.request
    answer: IssuerResponse = server.create_authorization_response(request, sign_in, review.grant)
    return wire.response(answer, method=review.form.method)


def refuse(
    server: AuthorizationServer, pages: Pages, error: "UnusableRequest | rfc6749.OAuth2Error"
) -> Response:
    """Return a page, or where the request's sender is known a redirect to it."""
    if isinstance(error, UnusableRequest):
        return pages.refusal(error.title, error.sentence, hint=error.hint)
    if error.redirect_uri:
        return wire.response(server.handle_error_response(None, error))
    sentence = str(error.description) or "The request cannot be understood."
    return pages.refusal("This request cannot go on", sentence)


class Authorize:
    """GET: the sign-in page, the consent page, or at once an answer."""

    def __init__(self, server: AuthorizationServer, pages: Pages) -> None:
        self.server = server
        self.issuer = server.issuer
        self.pages = pages

    async def get(self, request: Request) -> Response:
        try:
            checked = review(self.server, wire.query_of(request))
            return self._respond(request, checked)
        except wire.MalformedRequest as fault:
            return self.pages.refusal(
                "This request cannot be read", fault.sentence, status=fault.status
            )
        except (UnusableRequest, rfc6749.OAuth2Error) as error:
            return refuse(self.server, self.pages, error)

    def _respond(self, request: Request, checked: AuthorizationReview) -> Response:
        if self.issuer.settings.auto_approve:
            return decide(self.server, checked, self._automatic(checked))
        session = session_of(request, self.issuer)
        sign_in = session.sign_in
        if sign_in is None or not checked.satisfied(sign_in, self.issuer.now()):
            self._silence(checked, "login_required")
            return set_session_cookie(self._sign_in_page(checked, session), session, self.issuer)
        self._silence(checked, "consent_required")
        return set_session_cookie(
            self._consent_page(checked, session, sign_in), session, self.issuer
        )

    def _silence(self, checked: AuthorizationReview, error: str) -> None:
        """Answer `prompt=none` without a page (OpenID Connect Core 3.1.2.1)."""
        if "none" in checked.prompt:
            raise rfc6749.OAuth2Error(
                error=error,
                redirect_uri=checked.redirect_uri,
                state=checked.form.values.get("state"),
            )

    def _automatic(self, checked: AuthorizationReview) -> SignIn | None:
        """Return the user that the tests' mode signs in, or None if the name is unknown."""
        settings = self.issuer.settings
        hint = checked.form.values.get("login_hint") or settings.auto_user
        person = settings.user(hint) if hint else settings.people[0]
        if person is None:
            return None
        return self.issuer.sign_in(person, checked.acr or ACR_VALUES[0])

    def _sign_in_page(self, checked: AuthorizationReview, session: BrowserSession) -> Response:
        query = checked.query("prompt", "max_age", "login_hint")
        hint = checked.form.values.get("login_hint", "")
        values = {
            "client_name": checked.client.name or "An application",
            "users": self.issuer.settings.people,
            "expected": self.issuer.settings.user(hint) if hint else None,
            "strong": checked.acr == ACR_VALUES[1],
            "query": query,
            "seal": self.issuer.seal(session.id, "sign-in", query),
        }
        return self.pages.render("signin", values)

    def _consent_page(
        self, checked: AuthorizationReview, session: BrowserSession, sign_in: SignIn
    ) -> Response:
        settings = self.issuer.settings
        query = checked.query("prompt", "max_age", "login_hint")
        requested = (checked.form.values.get("scope") or "").split()
        values = {
            "client_name": checked.client.name or "An application without a name",
            "client_id": checked.client.client_id,
            "place": redirects.destination(checked.redirect_uri),
            "redirect_uri": checked.redirect_uri,
            "resource": checked.resource,
            "scopes": [(name, settings.descriptions.get(name, "")) for name in checked.scopes],
            "left_out": [name for name in requested if name not in (*settings.offered, *IDENTITY)],
            "person": sign_in.person,
            "query": query,
            "authorize": settings.path("authorization"),
            "switch": checked.query("prompt", "max_age") + "&prompt=select_account",
            "seal": self.issuer.seal(session.id, "consent", sign_in.person.username, query),
        }
        target = redirects.form_target(checked.redirect_uri)
        return self.pages.render("consent", values, form_target=target)


def serve(server: AuthorizationServer, pages: Pages) -> RouteHandler:
    """Return the endpoint that clients send browsers to."""
    return Authorize(server, pages).get
