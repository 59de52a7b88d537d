"""Check each request for a page: session, role, origin and form token."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from urllib.parse import quote, urlsplit

import msgspec
from starlette.types import Receive, Scope, Send

from gatepost.dashboard.cookie import Cookies
from gatepost.dashboard.dashboard_session import DashboardSessions, SignedInSession
from gatepost.dashboard.event_stream import LiveStream
from gatepost.dashboard.form_data import UnreadableForm, cookie_of, form_of, query_of
from gatepost.dashboard.location import DashboardLocation, DashboardPaths, valid_page_path
from gatepost.dashboard.page import DECIDERS, NotShown, PageRequest, PageResponse, PageRoute
from gatepost.dashboard.page_response import ResponseSender
from gatepost.dashboard.templating import TOKEN_FIELD, TOKEN_HEADER, Templates
from gatepost.execution.cpu_thread import TooManyWaiting
from gatepost.http.body import ClientDisconnected, TooLarge, read_body
from gatepost.http.checks import authorities
from gatepost.http.edge import peer_of
from gatepost.http.open_streams import OpenStreams, ServerStopping, TooMany
from gatepost.http.scope import HEADERS_BY_NAME, REQUEST_ID
from gatepost.policy.approvals.approval_request import SignedInApprover
from gatepost_authz.caller import TenantContext
from gatepost_authz.headers import HeaderField
from gatepost_authz.middleware import CALLER
from gatepost_authz.protected_resource import Resource

ROLE_NAMES = {"admin": "an administrator", "approver": "an approver", "operator": "an operator"}


class PageRefused(Exception):
    """
    An answer instead of the page: *status*, *title* and *sentence* for the user.

    *leave* is the form token of a session that can only sign out.
    """

    def __init__(self, status: int, title: str, sentence: str, *, leave: str = "") -> None:
        super().__init__(title)
        self.status = status
        self.title = title
        self.sentence = sentence
        self.leave = leave


CROSS_SITE_FORM = PageRefused(
    403,
    "This form cannot be accepted",
    "The form came from another site or from an outdated page. Nothing was changed. Open the "
    "dashboard and try again.",
)
ABSENT = PageRefused(404, "Page not found", "The page does not exist, or its content was deleted.")
TOO_MANY_WINDOWS = PageRefused(
    503, "Too many open windows", "Close some dashboard windows, then reload this page."
)
TOO_MANY_REQUESTS = PageRefused(
    503, "Too many requests at once", "Wait a moment, then reload this page."
)


class RequestOrigin:
    """Decide from the browser's headers whether a request comes from a page of the dashboard."""

    def __init__(self, resource: Resource) -> None:
        scheme = f"{resource.scheme}://".encode("ascii")
        hosts = authorities(resource.origin, development=False)
        self._origins = frozenset(scheme + host for host in hosts)

    def sends(self, headers: Mapping[bytes, bytes]) -> bool:
        """
        Return whether a POST comes from this dashboard; browsers name the origin with every POST
        (Fetch).
        """
        site = headers.get(b"sec-fetch-site", b"same-origin")
        return headers.get(b"origin", b"") in self._origins and site == b"same-origin"

    def may_ask(self, headers: Mapping[bytes, bytes]) -> bool:
        """
        Return whether a GET is allowed: from other sites only as a followed link, never as a
        subresource.
        """
        site = headers.get(b"sec-fetch-site", b"none")
        if site in {b"same-origin", b"none"}:
            return True
        destination = headers.get(b"sec-fetch-dest", b"document")
        return headers.get(b"sec-fetch-mode", b"") == b"navigate" and destination == b"document"


class PageServices(msgspec.Struct, frozen=True, kw_only=True):
    """The objects that all frames of a dashboard share."""

    location: DashboardLocation
    sessions: DashboardSessions
    cookies: Cookies
    view: Templates
    own_origin: RequestOrigin
    streams: OpenStreams
    max_body_bytes: int
    note: Callable[[str, TenantContext, str], Awaitable[None]]
    """Records a sign-in or sign-out with the user's address, durably."""
    leave: Callable[[DashboardPaths, str, str], Awaitable[str]]
    """
    Returns the URL to which a user is sent after a sign-out, from the dashboard, issuer and ID
    token (or empty).
    """


class CheckedPage:
    """
    Checks each request for one page, and serves the page to users who can see it.

    An ASGI app. Users without a session are sent to the sign-in, users without a role of the
    page get 403, and a form without its token changes nothing.
    """

    def __init__(self, page: PageRoute, services: PageServices) -> None:
        self.page = page
        self._services = services
        methods = {"GET": page.get, "HEAD": page.get, "POST": page.post}
        self._handlers = {name: handler for name, handler in methods.items() if handler}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._services
        paths = services.location.locate(scope["path"])
        reply = ResponseSender(send, head=scope["method"] == "HEAD")
        if paths is None:
            await reply.html(404, services.view.bare("error.html", "", turned=ABSENT, back=""))
            return
        try:
            await self._serve_page(paths, scope, receive, reply)
        except PageRefused as turned:
            return_to = "" if turned.leave else paths.base
            html = services.view.bare(
                "error.html", paths.base, turned=turned, back=return_to, csrf=turned.leave
            )
            await reply.html(turned.status, html)

    async def _serve_page(
        self, paths: DashboardPaths, scope: Scope, receive: Receive, reply: ResponseSender
    ) -> None:
        services = self._services
        if scope["method"] not in self._handlers:
            allow = (b"allow", ", ".join(self._handlers).encode("ascii"))
            turned = PageRefused(
                405, "Method not allowed", "This URL does not accept this request method."
            )
            html = services.view.bare("error.html", paths.base, turned=turned, back=paths.base)
            await reply.html(405, html, (allow,))
            return
        name = services.cookies.name("session", paths.target)
        session = await services.sessions.find(cookie_of(scope["headers"], name), paths.target)
        if session is None:
            await self._to_sign_in(paths, scope, reply)
            return
        scope[CALLER] = session.caller
        page_request = await self._judged(paths, session, scope, receive)
        if not services.sessions.lives(session):
            # The session may have ended while the form was being received.
            await self._to_sign_in(paths, scope, reply)
            return
        handler = self._handlers[scope["method"]]
        try:
            answer = await handler(page_request)
        except NotShown:
            raise ABSENT from None
        except TooManyWaiting:
            raise TOO_MANY_REQUESTS from None
        if answer.signs_out:
            await self._sign_out(paths, session, scope, reply)
            return
        await self._send(
            answer, page_request, session, receive, reply, self._renewal(session, paths)
        )

    async def _sign_out(
        self, paths: DashboardPaths, session: SignedInSession, scope: Scope, reply: ResponseSender
    ) -> None:
        services = self._services
        await services.sessions.end(session)
        await services.note("signed_out", session.caller, peer_of(scope))
        identity_cookie = cookie_of(
            scope["headers"], services.cookies.name("identity", paths.target)
        )
        hint = services.sessions.identity(session, identity_cookie)
        address = await services.leave(paths, session.caller.issuer, hint)
        removals = [services.cookies.removal("session", paths.target)]
        if identity_cookie:
            removals.append(services.cookies.removal("identity", paths.target))
        await reply.redirect(address, removals)

    async def _judged(
        self, paths: DashboardPaths, session: SignedInSession, scope: Scope, receive: Receive
    ) -> PageRequest:
        services, headers = self._services, scope[HEADERS_BY_NAME]
        if self.page.roles and not self.page.roles & session.caller.roles:
            raise PageRefused(
                403,
                "You have no role here",
                f"You are signed in, but you are {lacking(self.page.roles)} of "
                f"{session.caller.tenant_id}. Roles are assigned at your identity provider.",
                leave=services.sessions.token(session),
            )
        form: dict[str, str] = {}
        try:
            query = query_of(scope["query_string"])
            if scope["method"] == "POST":
                if not services.own_origin.sends(headers):
                    raise CROSS_SITE_FORM
                form = form_of(headers, await read_body(receive, services.max_body_bytes))
                token = form.pop(TOKEN_FIELD, "") or headers.get(TOKEN_HEADER.encode(), b"").decode(
                    "latin-1"
                )
                if not services.sessions.minted(session, token):
                    raise CROSS_SITE_FORM
            elif not services.own_origin.may_ask(headers):
                raise CROSS_SITE_FORM
        except UnreadableForm as fault:
            raise PageRefused(fault.status, "Request not readable", fault.sentence) from None
        except TooLarge:
            raise PageRefused(413, "Form too large", "The form is larger than the limit.") from None
        except ClientDisconnected:
            raise PageRefused(
                400, "Form incomplete", "The form arrived incomplete. Send it again."
            ) from None
        path = scope.get("path_params", {})
        if not all(value and value.isprintable() and len(value) <= 256 for value in path.values()):
            raise ABSENT
        return PageRequest(
            user=SignedInApprover(**msgspec.structs.asdict(session.caller), peer=peer_of(scope)),
            path={name: value for name, value in path.items() if name != "tenant"},
            query=query,
            form=form,
            csrf=services.sessions.token(session),
            base=paths.base,
            fragment=headers.get(b"hx-request") == b"true",
            request_id=scope.get(REQUEST_ID, ""),
        )

    def _renewal(self, session: SignedInSession, paths: DashboardPaths) -> Sequence[HeaderField]:
        renewed = None if self.page.background else self._services.sessions.renewed(session)
        if renewed is None:
            return ()
        value = self._services.sessions.sealed(renewed, paths.target)
        return (self._services.cookies.header("session", paths.target, value),)

    async def _send(
        self,
        answer: PageResponse,
        page_request: PageRequest,
        session: SignedInSession,
        receive: Receive,
        reply: ResponseSender,
        extra_headers: Sequence[HeaderField],
    ) -> None:
        if answer.events is not None:
            live = LiveStream(session, self._services.sessions, self._services.streams)
            try:
                await live.run(answer.events, receive, reply)
            except (TooMany, ServerStopping):
                raise TOO_MANY_WINDOWS from None
        elif answer.file is not None:
            await reply.file(answer, extra_headers)
        elif answer.html is not None:
            await reply.html(answer.status, answer.html, extra_headers)
        else:
            # Always a path below the dashboard's base, whatever the page returned.
            await reply.redirect(
                page_request.base + valid_page_path(answer.location), extra_headers
            )

    async def _to_sign_in(self, paths: DashboardPaths, scope: Scope, reply: ResponseSender) -> None:
        headers = scope[HEADERS_BY_NAME]
        if scope["method"] in {"GET", "HEAD"} and b"hx-request" not in headers:
            target = scope["path"].removeprefix(paths.base)
            if scope["query_string"]:
                target += "?" + scope["query_string"].decode("latin-1")
            await reply.redirect(sign_in_path(paths.base, valid_page_path(target)))
            return
        # htmx follows this header with the whole page, not only the requested part.
        target = path_of(headers.get(b"hx-current-url", b"").decode("latin-1"))
        location = sign_in_path(
            paths.base, valid_page_path(target.removeprefix(paths.base))
        ).encode("ascii")
        turned = PageRefused(
            401, "You are signed out", "Sign in again. Your last action was not carried out."
        )
        html = self._services.view.bare("error.html", paths.base, turned=turned, back=paths.base)
        await reply.html(401, html, ((b"hx-redirect", location),))


def lacking(roles: frozenset[str]) -> str:
    """Return in words that a user has none of these roles."""
    # The first page sends operators on to their page; a refusal must not ask a user to become an
    # operator.
    shown_roles = roles & DECIDERS or roles
    names = [ROLE_NAMES.get(role, role) for role in sorted(shown_roles, reverse=True)]
    return f"neither {' nor '.join(names)}" if len(names) > 1 else f"not {names[0]}"


def path_of(url: str) -> str:
    """Return the path and query of *url*, which the browser sent; empty if it is not a URL."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return parts.path + (f"?{parts.query}" if parts.query else "")


def sign_in_path(base: str, return_to: str) -> str:
    """Return the path of the sign-in page that continues to *return_to*."""
    return f"{base}/sign-in" + (f"?next={quote(return_to, safe='/')}" if return_to else "")
