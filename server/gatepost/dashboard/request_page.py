"""The page of one approval request, with the decision."""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from gatepost.dashboard import argument_form, argument_tree
from gatepost.dashboard.argument_form import Field, FilledForm
from gatepost.dashboard.difference import difference
from gatepost.dashboard.file_preview import FilePreviews
from gatepost.dashboard.grant_form import GrantFormPart, grant_form_of
from gatepost.dashboard.live import LiveInbox
from gatepost.dashboard.page import (
    NotShown,
    PageRequest,
    PageResponse,
    ServerSentEvent,
)
from gatepost.dashboard.templating import Templates
from gatepost.documents.exact_json import decoded
from gatepost.policy.approvals.approval_request import ApprovalRequest, Undecidable
from gatepost.policy.approvals.request_lists import PAGE
from gatepost.policy.approvals.service import DECIDED, ApprovalService
from gatepost.tools.offers.offer import Tool

Tools = Callable[[], Mapping[str, Tool]]


class RequestPage:
    """Render the page of one request; *tools* returns the current tools."""

    def __init__(
        self,
        view: Templates,
        approvals: ApprovalService,
        live: LiveInbox,
        *,
        targets: FilePreviews,
        tools: Tools,
    ) -> None:
        self._view, self._approvals, self._live = view, approvals, live
        self._targets, self._tools = targets, tools

    async def show(self, page_request: PageRequest) -> PageResponse:
        """Show the request, or a form to edit its arguments."""
        request = await self._find_request(page_request)
        if page_request.query.get("edit") and _can_edit(request):
            fields = await self._view.compute(page_request, self._fields, request)
            return await self._page(page_request, request, fields=fields)
        return await self._page(page_request, request)

    async def approve(self, page_request: PageRequest) -> PageResponse:
        """Approve the request, with a grant if the form has one."""
        grant_form = grant_form_of(page_request.form)
        if grant_form.has_errors:
            return await self._page(
                page_request,
                await self._find_request(page_request),
                status=422,
                grant_form=grant_form,
                comment=_text(page_request, "comment"),
            )
        grant = grant_form.granted(time.time())
        try:
            await self._approve(page_request, grant=grant)
        except Undecidable as undecidable:
            return await self._refused(
                page_request,
                str(undecidable),
                grant_form=grant_form,
                comment=_text(page_request, "comment"),
            )
        return _decided(page_request)

    async def approve_edited(self, page_request: PageRequest) -> PageResponse:
        """Approve the request with edited arguments."""
        request = await self._find_request(page_request)
        if not _can_edit(request):
            problem = self._approvals.objection(request, page_request.user) or DECIDED
            return await self._page(page_request, request, status=409, problem=problem)
        form = page_request.form
        filled = await self._view.compute(page_request, self._filled, request, form)
        entered: dict[str, Any] = {
            "fields": filled.fields,
            "comment": _text(page_request, "comment"),
        }
        if filled.errors:
            return await self._page(page_request, request, status=422, **entered)
        try:
            edited = await self._view.compute(page_request, filled.encoded, request.arguments)
            await self._approve(page_request, edited=edited)
        except Undecidable as problem:
            return await self._refused(page_request, str(problem), **entered)
        return _decided(page_request)

    async def _approve(self, page_request: PageRequest, **decision: Any) -> None:
        await self._approvals.approve(
            page_request.tenant,
            _id(page_request),
            page_request.user,
            seen_digest=_seen_digest(page_request),
            reason=_text(page_request, "comment"),
            **decision,
        )

    async def reject(self, page_request: PageRequest) -> PageResponse:
        """Reject the request with a reason."""
        reason = _text(page_request, "reason")
        try:
            await self._approvals.reject(
                page_request.tenant, _id(page_request), page_request.user, reason
            )
        except Undecidable as undecidable:
            return await self._refused(page_request, str(undecidable), reason=reason)
        return _decided(page_request)

    async def arguments(self, page_request: PageRequest) -> PageResponse:
        """Return all arguments as a file, with secrets redacted as on the page."""
        request = await self._find_request(page_request)
        encoded = request.edited if page_request.query.get("edited") else request.arguments
        if encoded is None:
            raise NotShown
        file = (request.content or "").encode() if request.kind == "script" else encoded
        kind = "text/plain; charset=utf-8" if request.kind == "script" else "application/json"
        name = f"{page_request.path['id'][:64]}.{'txt' if request.kind == 'script' else 'json'}"
        return PageResponse(file=file, file_name=name, file_type=kind)

    async def live(self, page_request: PageRequest) -> PageResponse:
        """Stream the decisions of other approvers while the page is open."""
        return PageResponse(
            events=self._events(page_request, await self._find_request(page_request))
        )

    async def _events(
        self, page_request: PageRequest, request: ApprovalRequest
    ) -> AsyncIterator[ServerSentEvent]:
        # The state that the page shows; it may have changed before the stream was opened.
        known_state = page_request.query.get("known", "")
        async for _ in self._live.watch(page_request.tenant):
            now = await self._approvals.get(page_request.tenant, request.id)
            if now is None or _state(now) != known_state:
                if now is not None:
                    known_state = _state(now)
                part = await self._state_of(page_request, now, address(request))
                yield ServerSentEvent("state", part)
            if now is None or now.state != "waiting":
                # The page closes the stream at this event; at any other end it would reconnect.
                yield ServerSentEvent("end", "")
                return

    async def _state_of(
        self, page_request: PageRequest, request: ApprovalRequest | None, where: str
    ) -> str:
        return await self._view.part("state.html", page_request, request=request, address=where)

    async def _find_request(self, page_request: PageRequest) -> ApprovalRequest:
        request = await self._approvals.get(page_request.tenant, _id(page_request))
        if request is None:
            raise NotShown
        return request

    async def _refused(
        self, page_request: PageRequest, problem: str, **values: Any
    ) -> PageResponse:
        """Return the page again with the reason, keeping everything that the approver entered."""
        request = await self._approvals.get(page_request.tenant, _id(page_request))
        if request is None:
            return await self._view.page("gone.html", page_request, tab="", status=409, why=problem)
        return await self._page(page_request, request, status=409, problem=problem, **values)

    async def _page(  # noqa: PLR0913  # each is a state of the page
        self,
        page_request: PageRequest,
        request: ApprovalRequest,
        *,
        status: int = 200,
        problem: str = "",
        fields: Sequence[Field] = (),
        grant_form: GrantFormPart | None = None,
        reason: str = "",
        comment: str = "",
    ) -> PageResponse:
        is_open = request.state == "waiting"
        editing = bool(fields) and is_open
        tool = self._tools().get(request.tool)
        described = tool if request.facts is None else self._approvals.policies.tool_of(request)
        values: dict[str, object] = {
            "description": "" if described is None else described.description,
            "request": request,
            "problem": problem,
            "fields": fields,
            "editing": editing,
            "errors": any(field.error for field in fields),
            "can_edit": _can_edit(request),
            "grant_form": grant_form or GrantFormPart(),
            "reason": reason,
            "comment": comment,
            "objection": self._approvals.objection(request, page_request.user) if is_open else None,
            "address": address(request),
            "known": _state(request),
        }
        read = _script if request.kind == "script" else _arguments
        values |= await self._view.compute(page_request, read, request)
        is_previewed = is_open and request.kind == "call"
        values["target"] = await self._targets.preview(request, tool) if is_previewed else None
        values["after_all"] = (
            request.kind == "script"
            and request.state == "rejected"
            and self._approvals.objection(request, page_request.user) is None
        )
        if not is_open:
            page = await self._approvals.waiting_page(page_request.tenant)
            values["others"] = f"{PAGE} or" if page.later else len(page.requests)
        tab = "" if is_open else "/history"
        return await self._view.page("request.html", page_request, tab=tab, status=status, **values)

    def _filled(self, request: ApprovalRequest, form: Mapping[str, str]) -> FilledForm:
        return argument_form.filled(self._fields(request), form)

    def _fields(self, request: ApprovalRequest) -> list[Field]:
        tool = self._tools().get(request.tool)
        shown_arguments = decoded(request.arguments)
        return argument_form.fields_of(shown_arguments, tool.input_schema if tool else {})


def address(request: ApprovalRequest) -> str:
    """Return the request's path below the base."""
    return f"/approvals/{request.id.replace(':', '-', 1)}"


def _id(page_request: PageRequest) -> str:
    return page_request.path["id"].replace("script-", "script:", 1)


def _seen_digest(page_request: PageRequest) -> str:
    # A form without it was not sent by the page, so it is unknown what the approver saw.
    return page_request.form.get("seen", "") or "nothing"


def _text(page_request: PageRequest, field: str) -> str:
    return page_request.form.get(field, "").replace("\r\n", "\n")


def _decided(page_request: PageRequest) -> PageResponse:
    return PageResponse(
        location=""
        if page_request.path["id"].startswith("script-")
        else f"/approvals/{page_request.path['id']}"
    )


def _can_edit(request: ApprovalRequest) -> bool:
    return request.kind == "call" and request.state == "waiting" and not request.approvals_given


def _state(request: ApprovalRequest) -> str:
    """Return a text that changes whenever an open page has to show an update."""
    return f"{request.state}-{request.approvals_given}-{request.digest}"


def _script(request: ApprovalRequest) -> dict[str, object]:
    content, before = request.content or "", request.approved_content
    return {
        "content": argument_tree.tree(content),
        "change": None if before is None else difference(before, content),
    }


def _arguments(request: ApprovalRequest) -> dict[str, object]:
    return {
        "arguments": argument_tree.read(request.arguments),
        "edited": argument_tree.read(request.edited) if request.edited else None,
    }
