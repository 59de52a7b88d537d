"""The upstreams page: MCP servers with their health, and changes of their tools to accept."""

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from gatepost.dashboard.difference import ComparisonLimit, Difference, difference
from gatepost.dashboard.page import NotShown, PageRequest, PageResponse, PageRoute
from gatepost.dashboard.templating import Templates
from gatepost.upstreams.administration import Conflict, NotRegistered, UpstreamAdministration
from gatepost.upstreams.agent_administration import AgentAdministration
from gatepost.upstreams.calls.calls import UpstreamCalls
from gatepost.upstreams.calls.health import HealthNumbers
from gatepost.upstreams.catalogue import Catalogue, Change, Definition, LeftOut
from gatepost.upstreams.connection import ConnectionFailure
from gatepost.upstreams.management_audit import ManagementActor
from gatepost.upstreams.registration_changes import ServerChanges
from gatepost.upstreams.upstream_offers import UpstreamOffers
from gatepost.upstreams.upstream_server import Status, UpstreamServer

ADMIN = frozenset({"admin"})
"""The roles of which a user needs one."""
STATUSES: Mapping[str, Status] = {"active": "active", "disabled": "disabled"}
MAX_SHOWN = 50
"""Changes, cleanings and left-out definitions of one server that the page shows."""


class ShownChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change that waits, with its difference line by line."""

    change: Change
    difference: Difference


class ShownUpstream(msgspec.Struct, frozen=True, kw_only=True):
    """One server as the page shows it."""

    server: UpstreamServer
    catalogue: Catalogue | None
    state: str
    tools: int = 0
    changes: tuple[ShownChange, ...] = ()
    waiting: int = 0
    changes_digest: str = ""
    """A digest of all changes that wait, so that nothing else is accepted."""
    left_out: Sequence[LeftOut] = ()
    cleaned: Sequence[Definition] = ()
    health: HealthNumbers
    """The calls of the process that answers."""


class ShownServices(Protocol):
    """The services that the page uses to show and change upstreams."""

    administration: UpstreamAdministration
    agents: AgentAdministration
    offers: UpstreamOffers
    calls: UpstreamCalls


def routes(view: Templates, upstreams: ShownServices) -> tuple[PageRoute, ...]:
    """Return the routes of the page, which is for administrators."""
    page, path = UpstreamsPage(view, upstreams), "/upstreams/{id}"
    return (
        PageRoute(path="/upstreams", get=page.show, roles=ADMIN),
        PageRoute(path=f"{path}/accept", post=page.accept, roles=ADMIN),
        PageRoute(path=f"{path}/refresh", post=page.refresh, roles=ADMIN),
        PageRoute(path=f"{path}/status", post=page.switch, roles=ADMIN),
    )


class UpstreamsPage:
    """Render the upstreams page."""

    def __init__(self, view: Templates, upstreams: ShownServices) -> None:
        self._view, self._upstreams = view, upstreams
        self._administration = upstreams.administration

    async def show(self, page_request: PageRequest) -> PageResponse:
        """Show all servers of the tenant."""
        return await self._page(page_request)

    async def accept(self, page_request: PageRequest) -> PageResponse:
        """Accept one change, or all that the user has seen."""
        server = await self._server(page_request)
        digest = page_request.form.get("digest", "")
        catalogue = await self._administration.catalogue(server)
        changes = () if catalogue is None else catalogue.changes
        if not digest and page_request.form.get("seen", "") != seen_of(changes):
            return await self._page(
                page_request,
                status=409,
                problem="The changes are different now. Review them again.",
            )
        try:
            digests = (digest,) if digest else tuple(change.digest for change in changes)
            await self._administration.accept(server, digests, _actor(page_request))
        except Conflict as conflict:
            return await self._page(page_request, status=409, problem=conflict.message)
        return PageResponse(location="/upstreams")

    async def refresh(self, page_request: PageRequest) -> PageResponse:
        """Fetch what a server offers now."""
        server = await self._server(page_request)
        try:
            await self._administration.refresh(server, _actor(page_request))
        except Conflict as conflict:
            return await self._page(page_request, status=409, problem=conflict.message)
        except ConnectionFailure as failure:
            return await self._page(page_request, status=502, problem=failure.message)
        return PageResponse(location="/upstreams")

    async def switch(self, page_request: PageRequest) -> PageResponse:
        """Enable or disable a server of the API."""
        server = await self._server(page_request)
        status = STATUSES.get(page_request.form.get("status", ""))
        if status is None:
            return await self._page(page_request, status=400, problem="Choose enable or disable.")
        try:
            changes = ServerChanges(status=status)
            await self._administration.change(server, changes, _actor(page_request))
        except Conflict as conflict:
            return await self._page(page_request, status=409, problem=conflict.message)
        return PageResponse(location="/upstreams")

    async def _server(self, page_request: PageRequest) -> UpstreamServer:
        try:
            return await self._administration.server(page_request.tenant, page_request.path["id"])
        except NotRegistered:
            raise NotShown from None

    async def _page(
        self, page_request: PageRequest, *, status: int = 200, problem: str = ""
    ) -> PageResponse:
        servers = await self._administration.servers(page_request.tenant)
        upstreams, limit = [], ComparisonLimit()
        for server in servers:
            catalogue = await self._administration.catalogue(server)
            left_out = self._upstreams.offers.left_out(page_request.tenant, server.id)
            health = self._upstreams.calls.health.numbers(page_request.tenant, server.id)
            # An upstream's texts may be long.
            upstreams.append(
                await asyncio.to_thread(
                    shown_server, server, catalogue, health, limit=limit, left_out=left_out
                )
            )
        agents = await self._upstreams.agents.agents(page_request.tenant)
        return await self._view.page(
            "upstreams.html",
            page_request,
            tab="/upstreams",
            status=status,
            problem=problem,
            upstreams=upstreams,
            agents=agents,
            servers={server.id: server.name for server in servers},
            max_shown=MAX_SHOWN,
        )


def shown_server(
    server: UpstreamServer,
    catalogue: Catalogue | None,
    health: HealthNumbers,
    *,
    limit: ComparisonLimit,
    left_out: Sequence[LeftOut] = (),
) -> ShownUpstream:
    """Return the shown form of a server; *left_out* and the unusable definitions are left out."""
    if catalogue is None:
        state = "disabled" if server.status == "disabled" else "new"
        return ShownUpstream(server=server, catalogue=None, state=state, health=health)
    state = "failing" if catalogue.failing_since is not None else "working"
    changes = catalogue.changes
    return ShownUpstream(
        server=server,
        catalogue=catalogue,
        state="disabled" if server.status == "disabled" else state,
        tools=sum(definition.section == "tools" for definition in catalogue.definitions),
        changes=tuple(
            ShownChange(
                change=change,
                difference=difference(_text(change.before), _text(change.after), limit=limit),
            )
            for change in changes[:MAX_SHOWN]
        ),
        waiting=len(changes),
        changes_digest=seen_of(changes),
        left_out=tuple(dict.fromkeys((*catalogue.left_out, *left_out))),
        health=health,
        cleaned=[definition for definition in catalogue.definitions if definition.cleaned][
            :MAX_SHOWN
        ],
    )


def seen_of(changes: Sequence[Change]) -> str:
    """Return a digest of changes that wait."""
    identity = sorted((change.section, change.key, change.digest) for change in changes)
    return hashlib.sha256(msgspec.json.encode(identity)).hexdigest()


def _text(value: Mapping[str, Any] | None) -> str:
    return "" if value is None else json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)


def _actor(page_request: PageRequest) -> ManagementActor:
    return ManagementActor(
        caller=page_request.user, peer=page_request.user.peer, request_id=page_request.request_id
    )
