"""What stands around each page: the session, the role, the origin, the form's token."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from urllib.parse import quote, urlsplit

import msgspec
from starlette.types import Receive, Scope, Send

from gatepost.approvals.request import Visitor
from gatepost.dashboard.cookie import Cookies
from gatepost.dashboard.form import Unreadable, cookie_of, form_of, query_of
from gatepost.dashboard.headers import Header
from gatepost.dashboard.place import Place, Spot, below
from gatepost.dashboard.reply import Reply
from gatepost.dashboard.session import Session, Sessions
from gatepost.dashboard.stream import Live
from gatepost.dashboard.view import TOKEN_FIELD, TOKEN_HEADER, View
from gatepost.dashboard.visit import Answer, NotShown, Page, Visit
from gatepost.edge.origin import authorities
from gatepost.intake import Gone, TooLarge, read_body
from gatepost.scope import FOLDED, REQUEST_ID, peer_of
from gatepost.streams import Closing, Streams, TooMany
from gatepost_authz.caller import TenantContext
from gatepost_authz.config import Resource
from gatepost_authz.middleware import CALLER


class Turned(Exception):
    """
    A visit that ends before its page: *status* and two sentences for the visitor.

    *leave* is the token of a session that is good for nothing here but signing out.
    """

    def __init__(self, status: int, title: str, sentence: str, *, leave: str = "") -> None:
        super().__init__(title)
        self.status = status
        self.title = title
        self.sentence = sentence
        self.leave = leave


FOREIGN = Turned(
    403,
    "This did not come from the dashboard",
    "Another page, or a very old one of ours, has sent this form. Nothing was changed: open the "
    "dashboard and do it there.",
)
ABSENT = Turned(404, "Nothing is here", "It may be over and gone, or it never was.")
CROWDED = Turned(
    503, "Too many windows", "Close some windows of the dashboard and load this again."
)


class Own:
    """Whether a request comes from a page of ours, by what browsers say of it."""

    def __init__(self, resource: Resource) -> None:
        scheme = f"{resource.scheme}://".encode("ascii")
        hosts = authorities(resource.origin, development=False)
        self._origins = frozenset(scheme + host for host in hosts)

    def sends(self, headers: Mapping[bytes, bytes]) -> bool:
        """A form: browsers name the origin with every POST (Fetch), so none is no browser's."""
        site = headers.get(b"sec-fetch-site", b"same-origin")
        return headers.get(b"origin", b"") in self._origins and site == b"same-origin"

    def may_ask(self, headers: Mapping[bytes, bytes]) -> bool:
        """A GET: from elsewhere only as a link that somebody follows, never from within a page."""
        site = headers.get(b"sec-fetch-site", b"none")
        if site in {b"same-origin", b"none"}:
            return True
        place = headers.get(b"sec-fetch-dest", b"document")
        return headers.get(b"sec-fetch-mode", b"") == b"navigate" and place == b"document"


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What all frames of a dashboard share."""

    place: Place
    sessions: Sessions
    cookies: Cookies
    view: View
    own: Own
    streams: Streams
    max_body_bytes: int
    note: Callable[[str, TenantContext, str], Awaitable[None]]
    """Puts a sign-in or a sign-out on record, and from which address, durably."""


class Frame:
    """
    One page, for those who may see it.

    An ASGI app: whoever is not signed in is led to the sign-in, whoever has none of the page's
    roles is told so, and a form without its token changes nothing.
    """

    def __init__(self, page: Page, around: Surroundings) -> None:
        self.page = page
        self._around = around
        methods = {"GET": page.get, "HEAD": page.get, "POST": page.post}
        self._handlers = {name: handler for name, handler in methods.items() if handler}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        around = self._around
        spot = around.place.locate(scope["path"])
        reply = Reply(send, head=scope["method"] == "HEAD")
        if spot is None:
            await reply.html(404, around.view.bare("error.html", "", turned=ABSENT, back=""))
            return
        try:
            await self._visit(spot, scope, receive, reply)
        except Turned as turned:
            back = "" if turned.leave else spot.base
            html = around.view.bare(
                "error.html", spot.base, turned=turned, back=back, csrf=turned.leave
            )
            await reply.html(turned.status, html)

    async def _visit(self, spot: Spot, scope: Scope, receive: Receive, reply: Reply) -> None:
        around = self._around
        if scope["method"] not in self._handlers:
            allow = (b"allow", ", ".join(self._handlers).encode("ascii"))
            turned = Turned(405, "Not like this", "This address cannot be used in that way.")
            html = around.view.bare("error.html", spot.base, turned=turned, back=spot.base)
            await reply.html(405, html, (allow,))
            return
        name = around.cookies.name("session", spot.target)
        session = await around.sessions.find(cookie_of(scope["headers"], name), spot.target)
        if session is None:
            await self._to_sign_in(spot, scope, reply)
            return
        scope[CALLER] = session.caller
        visit = await self._judged(spot, session, scope, receive)
        handler = self._handlers[scope["method"]]
        try:
            answer = await handler(visit)
        except NotShown:
            raise ABSENT from None
        if answer.signs_out:
            await around.sessions.end(session)
            await around.note("signed_out", session.caller, peer_of(scope))
            removal = around.cookies.removal("session", spot.target)
            await reply.redirect(f"{spot.base}/signed-out", (removal,))
            return
        await self._send(answer, visit, session, receive, reply, self._renewal(session, spot))

    async def _judged(self, spot: Spot, session: Session, scope: Scope, receive: Receive) -> Visit:
        around, headers = self._around, scope[FOLDED]
        if self.page.roles and not self.page.roles & session.caller.roles:
            raise Turned(
                403,
                "You have no role here",
                "You are signed in, but neither as an approver nor as an administrator of "
                f"{session.caller.tenant_id}. Your identity provider gives these roles.",
                leave=around.sessions.token(session),
            )
        form: dict[str, str] = {}
        try:
            query = query_of(scope["query_string"])
            if scope["method"] == "POST":
                if not around.own.sends(headers):
                    raise FOREIGN
                form = form_of(headers, await read_body(receive, around.max_body_bytes))
                given = form.pop(TOKEN_FIELD, "") or headers.get(TOKEN_HEADER.encode(), b"").decode(
                    "latin-1"
                )
                if not around.sessions.minted(session, given):
                    raise FOREIGN
            elif not around.own.may_ask(headers):
                raise FOREIGN
        except Unreadable as fault:
            raise Turned(fault.status, "This cannot be read", fault.sentence) from None
        except TooLarge:
            raise Turned(413, "This is too large", "The form holds more than is taken.") from None
        except Gone:
            raise Turned(400, "This is incomplete", "The form did not arrive whole.") from None
        path = scope.get("path_params", {})
        if not all(value and value.isprintable() and len(value) <= 256 for value in path.values()):
            raise ABSENT
        return Visit(
            visitor=Visitor(**msgspec.structs.asdict(session.caller), peer=peer_of(scope)),
            path={name: value for name, value in path.items() if name != "tenant"},
            query=query,
            form=form,
            csrf=around.sessions.token(session),
            base=spot.base,
            fragment=headers.get(b"hx-request") == b"true",
            request_id=scope.get(REQUEST_ID, ""),
        )

    def _renewal(self, session: Session, spot: Spot) -> Sequence[Header]:
        renewed = None if self.page.background else self._around.sessions.renewed(session)
        if renewed is None:
            return ()
        value = self._around.sessions.sealed(renewed, spot.target)
        return (self._around.cookies.header("session", spot.target, value),)

    async def _send(
        self,
        answer: Answer,
        visit: Visit,
        session: Session,
        receive: Receive,
        reply: Reply,
        more: Sequence[Header],
    ) -> None:
        if answer.events is not None:
            live = Live(session, self._around.sessions, self._around.streams)
            try:
                await live.run(answer.events, receive, reply)
            except (TooMany, Closing):
                raise CROWDED from None
        elif answer.file is not None:
            await reply.file(answer, more)
        elif answer.html is not None:
            await reply.html(answer.status, answer.html, more)
        else:
            # A path below our own base, whatever a page made it of.
            await reply.redirect(visit.base + below(answer.location), more)

    async def _to_sign_in(self, spot: Spot, scope: Scope, reply: Reply) -> None:
        headers = scope[FOLDED]
        if scope["method"] in {"GET", "HEAD"} and b"hx-request" not in headers:
            wanted = scope["path"].removeprefix(spot.base)
            if scope["query_string"]:
                wanted += "?" + scope["query_string"].decode("latin-1")
            await reply.redirect(sign_in_path(spot.base, below(wanted)))
            return
        # htmx takes the whole page there; the part that it asked for is nobody's.
        wanted = path_of(headers.get(b"hx-current-url", b"").decode("latin-1"))
        way = sign_in_path(spot.base, below(wanted.removeprefix(spot.base))).encode("ascii")
        turned = Turned(401, "You are signed out", "Sign in again; what you just sent is not done.")
        html = self._around.view.bare("error.html", spot.base, turned=turned, back=spot.base)
        await reply.html(401, html, ((b"hx-redirect", way),))


def path_of(url: str) -> str:
    """Path and query of *url*, which a browser says; empty for what is none."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return parts.path + (f"?{parts.query}" if parts.query else "")


def sign_in_path(base: str, onward: str) -> str:
    """Where somebody signs in who wants to go *onward*."""
    return f"{base}/sign-in" + (f"?next={quote(onward, safe='/')}" if onward else "")
