"""One request: what it would do, and the decision about it."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from gatepost.approvals.desk import Desk
from gatepost.approvals.request import Request, Undecidable
from gatepost.approvals.verbatim import decoded
from gatepost.dashboard import reading, revision
from gatepost.dashboard.difference import difference
from gatepost.dashboard.live import Live
from gatepost.dashboard.revision import Field
from gatepost.dashboard.sheet import Sheet
from gatepost.dashboard.target import Targets
from gatepost.dashboard.terms import Terms, terms_of
from gatepost.dashboard.visit import Answer, Event, NotShown, Visit, redirect, stream
from gatepost.tools.api import Tool

DECIDED = "Somebody has approved the arguments as they are. Approve them too, or reject."

Tools = Callable[[], Mapping[str, Tool]]


class Review:
    """The page of one request; *tools* are those that are served."""

    def __init__(
        self, sheet: Sheet, desk: Desk, live: Live, *, targets: Targets, tools: Tools
    ) -> None:
        self._sheet, self._desk, self._live = sheet, desk, live
        self._targets, self._tools = targets, tools

    async def show(self, visit: Visit) -> Answer:
        """The request as it is now, or with a form to edit its arguments."""
        request = await self._found(visit)
        if visit.query.get("edit") and _can_edit(request):
            return await self._page(visit, request, fields=self._fields(request))
        return await self._page(visit, request)

    async def approve(self, visit: Visit) -> Answer:
        """Let it pass as it is, perhaps with others like it."""
        terms = terms_of(visit.form)
        if terms.has_mistakes:
            return await self._page(visit, await self._found(visit), status=422, terms=terms)
        grant = terms.granted(self._sheet.clock())
        try:
            await self._desk.approve(
                visit.tenant, _id(visit), visit.visitor, seen=_seen(visit), grant=grant
            )
        except Undecidable as why:
            return await self._refused(visit, str(why), terms=terms)
        return _decided(visit)

    async def approve_edited(self, visit: Visit) -> Answer:
        """Let it pass with other arguments."""
        request = await self._found(visit)
        if not _can_edit(request):
            why = self._desk.objection(request, visit.visitor) or DECIDED
            return await self._page(visit, request, status=409, problem=why)
        filled = revision.filled(self._fields(request), visit.form)
        if filled.mistakes:
            return await self._page(visit, request, status=422, fields=filled.fields)
        edited = filled.encoded(request.arguments)
        try:
            await self._desk.approve(
                visit.tenant, _id(visit), visit.visitor, seen=_seen(visit), edited=edited
            )
        except Undecidable as why:
            return await self._refused(visit, str(why), fields=filled.fields)
        return _decided(visit)

    async def reject(self, visit: Visit) -> Answer:
        """Refuse it, with a reason."""
        reason = visit.form.get("reason", "").replace("\r\n", "\n")
        try:
            await self._desk.reject(visit.tenant, _id(visit), visit.visitor, reason)
        except Undecidable as why:
            return await self._refused(visit, str(why), reason=reason)
        return _decided(visit)

    async def arguments(self, visit: Visit) -> Answer:
        """All of the arguments as a file, secrets redacted as on the page."""
        request = await self._found(visit)
        told = request.edited if visit.query.get("edited") else request.arguments
        if told is None:
            raise NotShown
        file = (request.content or "").encode() if request.kind == "script" else told
        kind = "text/plain; charset=utf-8" if request.kind == "script" else "application/json"
        name = f"{visit.path['id'][:64]}.{'txt' if request.kind == 'script' else 'json'}"
        return Answer(file=file, file_name=name, file_type=kind)

    async def live(self, visit: Visit) -> Answer:
        """What others decide while somebody looks at the page."""
        return stream(self._events(visit, await self._found(visit)))

    async def _events(self, visit: Visit, request: Request) -> AsyncIterator[Event]:
        # What the page shows: somebody may have decided before it could ask.
        known = visit.query.get("known", "")
        async for _ in self._live.watch(visit.tenant):
            now = await self._desk.get(visit.tenant, request.id)
            if now is None or _state(now) != known:
                if now is not None:
                    known = _state(now)
                yield Event("state", self._state_of(visit, now, address(request)))
            if now is None or now.state != "waiting":
                # The page closes the stream at this word; at any other end it would come back.
                yield Event("end", "")
                return

    def _state_of(self, visit: Visit, request: Request | None, where: str) -> str:
        return self._sheet.part("state.html", visit, request=request, address=where)

    async def _found(self, visit: Visit) -> Request:
        request = await self._desk.get(visit.tenant, _id(visit))
        if request is None:
            raise NotShown
        return request

    async def _refused(self, visit: Visit, why: str, **values: Any) -> Answer:
        """The page again: what it said counts no more, and nothing that was written is lost."""
        request = await self._desk.get(visit.tenant, _id(visit))
        if request is None:
            return self._sheet.page("gone.html", visit, here="", status=409, why=why)
        return await self._page(visit, request, status=409, problem=why, **values)

    async def _page(  # noqa: PLR0913  # each is a state of the page
        self,
        visit: Visit,
        request: Request,
        *,
        status: int = 200,
        problem: str = "",
        fields: Sequence[Field] = (),
        terms: Terms | None = None,
        reason: str = "",
    ) -> Answer:
        is_open = request.state == "waiting"
        editing = bool(fields) and is_open
        tool = self._tools().get(request.tool)
        values: dict[str, object] = {
            "request": request,
            "problem": problem,
            "fields": fields,
            "editing": editing,
            "mistakes": any(field.mistake for field in fields),
            "can_edit": _can_edit(request),
            "terms": terms or Terms(),
            "reason": reason,
            "objection": self._desk.objection(request, visit.visitor) if is_open else None,
            "address": address(request),
            "known": _state(request),
        }
        if request.kind == "script":
            values |= _script(request)
        else:
            values |= {
                "arguments": reading.read(request.arguments),
                "edited": reading.read(request.edited) if request.edited else None,
                "target": await self._targets.of(request, tool.pack if tool else "")
                if is_open
                else None,
            }
        values["after_all"] = (
            request.kind == "script"
            and request.state == "rejected"
            and self._desk.objection(request, visit.visitor) is None
        )
        if not is_open:
            values["others"] = len(await self._desk.waiting(visit.tenant))
        here = "" if is_open else "/history"
        return self._sheet.page("request.html", visit, here=here, status=status, **values)

    def _fields(self, request: Request) -> list[Field]:
        tool = self._tools().get(request.tool)
        shown = decoded(request.arguments)
        return revision.fields_of(shown, tool.input_schema if tool else {})


def address(request: Request) -> str:
    """The request's path below the base."""
    return f"/approvals/{request.id.replace(':', '-', 1)}"


def _id(visit: Visit) -> str:
    return visit.path["id"].replace("script-", "script:", 1)


def _seen(visit: Visit) -> str:
    # A form without it was not made by our page: what was seen then is nobody's to say.
    return visit.form.get("seen", "") or "nothing"


def _decided(visit: Visit) -> Answer:
    return redirect(
        "" if visit.path["id"].startswith("script-") else f"/approvals/{visit.path['id']}"
    )


def _can_edit(request: Request) -> bool:
    return request.kind == "call" and request.state == "waiting" and not request.given


def _state(request: Request) -> str:
    """Another one for whatever a page has to tell of."""
    return f"{request.state}-{request.given}-{request.digest}"


def _script(request: Request) -> dict[str, object]:
    content, before = request.content or "", request.approved_content
    return {
        "content": reading.tree(content),
        "change": None if before is None else difference(before, content),
        "target": None,
    }
