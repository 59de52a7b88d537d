"""The upstreams page: MCP servers with their health, and changes of their tools to accept."""

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from gatepost.dashboard.difference import ComparisonLimit, Difference, difference
from gatepost.dashboard.navigation import PageLayout
from gatepost.dashboard.page import NotShown, PageRequest, PageResponse, PageRoute, redirect
from gatepost.upstreams.administration import Conflict, NotRegistered, UpstreamAdministration
from gatepost.upstreams.agent_administration import AgentAdministration
from gatepost.upstreams.calls.calls import UpstreamCalls
from gatepost.upstreams.calls.health import HealthNumbers
from gatepost.upstreams.catalogue import Catalogue, Change, Definition, LeftOut
from gatepost.upstreams.connection import ConnectionFailure
from gatepost.upstreams.management_audit import ManagementActor
from gatepost.upstreams.registration_changes import ServerChanges
from gatepost.upstreams.server import Status, UpstreamServer
from gatepost.upstreams.source import UpstreamOffers

ADMIN = frozenset({"admin"})
"""The roles of which a visitor needs one."""
STATUSES: Mapping[str, Status] = {"active": "active", "disabled": "disabled"}
MOST_SHOWN = 50
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
    seen: str = ""
    """A digest of all changes that wait, so that nothing else is accepted."""
    left_out: Sequence[LeftOut] = ()
    cleaned: Sequence[Definition] = ()
    health: HealthNumbers
    """The calls of the process that answers."""


class ShownServices(Protocol):
    """What the page shows and changes."""

    administration: UpstreamAdministration
    agents: AgentAdministration
    offers: UpstreamOffers
    calls: UpstreamCalls


def routes(sheet: PageLayout, upstreams: ShownServices) -> tuple[PageRoute, ...]:
    """Return the routes of the page, which is for administrators."""
    page, one = UpstreamsPage(sheet, upstreams), "/upstreams/{id}"
    return (
        PageRoute(path="/upstreams", get=page.show, roles=ADMIN),
        PageRoute(path=f"{one}/accept", post=page.accept, roles=ADMIN),
        PageRoute(path=f"{one}/refresh", post=page.refresh, roles=ADMIN),
        PageRoute(path=f"{one}/status", post=page.switch, roles=ADMIN),
    )


class UpstreamsPage:
    """Render the upstreams page."""

    def __init__(self, sheet: PageLayout, upstreams: ShownServices) -> None:
        self._sheet, self._upstreams = sheet, upstreams
        self._administration = upstreams.administration

    async def show(self, visit: PageRequest) -> PageResponse:
        """Show all servers of the tenant."""
        return await self._page(visit)

    async def accept(self, visit: PageRequest) -> PageResponse:
        """Accept one change, or all that the visitor has seen."""
        server = await self._server(visit)
        digest = visit.form.get("digest", "")
        catalogue = await self._administration.catalogue(server)
        changes = () if catalogue is None else catalogue.changes
        if not digest and visit.form.get("seen", "") != seen_of(changes):
            return await self._page(
                visit, status=409, problem="The changes are others by now. Look at them again."
            )
        try:
            chosen = (digest,) if digest else tuple(one.digest for one in changes)
            await self._administration.accept(server, chosen, _actor(visit))
        except Conflict as conflict:
            return await self._page(visit, status=409, problem=conflict.message)
        return redirect("/upstreams")

    async def refresh(self, visit: PageRequest) -> PageResponse:
        """Fetch what a server offers now."""
        server = await self._server(visit)
        try:
            await self._administration.refresh(server, _actor(visit))
        except Conflict as conflict:
            return await self._page(visit, status=409, problem=conflict.message)
        except ConnectionFailure as failure:
            return await self._page(visit, status=502, problem=failure.message)
        return redirect("/upstreams")

    async def switch(self, visit: PageRequest) -> PageResponse:
        """Enable or disable a server of the API."""
        server = await self._server(visit)
        wanted = STATUSES.get(visit.form.get("status", ""))
        if wanted is None:
            return await self._page(visit, status=400, problem="Choose enable or disable.")
        try:
            changes = ServerChanges(status=wanted)
            await self._administration.change(server, changes, _actor(visit))
        except Conflict as conflict:
            return await self._page(visit, status=409, problem=conflict.message)
        return redirect("/upstreams")

    async def _server(self, visit: PageRequest) -> UpstreamServer:
        try:
            return await self._administration.server(visit.tenant, visit.path["id"])
        except NotRegistered:
            raise NotShown from None

    async def _page(
        self, visit: PageRequest, *, status: int = 200, problem: str = ""
    ) -> PageResponse:
        found = await self._administration.servers(visit.tenant)
        shown, limit = [], ComparisonLimit()
        for server in found:
            catalogue = await self._administration.catalogue(server)
            taken = self._upstreams.offers.left_out(visit.tenant, server.id)
            health = self._upstreams.calls.health.numbers(visit.tenant, server.id)
            # Texts of strangers may be long.
            shown.append(
                await asyncio.to_thread(
                    shown_server, server, catalogue, health, limit=limit, taken=taken
                )
            )
        agents = await self._upstreams.agents.agents(visit.tenant)
        return self._sheet.page(
            "upstreams.html",
            visit,
            here="/upstreams",
            status=status,
            problem=problem,
            upstreams=shown,
            agents=agents,
            servers={server.id: server.name for server in found},
            most=MOST_SHOWN,
        )


def shown_server(
    server: UpstreamServer,
    catalogue: Catalogue | None,
    health: HealthNumbers,
    *,
    limit: ComparisonLimit,
    taken: Sequence[LeftOut] = (),
) -> ShownUpstream:
    """Return what the page shows of a server; *taken* is left out beside what is unusable."""
    if catalogue is None:
        state = "disabled" if server.status == "disabled" else "new"
        return ShownUpstream(server=server, catalogue=None, state=state, health=health)
    state = "failing" if catalogue.failing_since is not None else "working"
    changes = catalogue.changes
    return ShownUpstream(
        server=server,
        catalogue=catalogue,
        state="disabled" if server.status == "disabled" else state,
        tools=sum(one.section == "tools" for one in catalogue.definitions),
        changes=tuple(
            ShownChange(
                change=one,
                difference=difference(_text(one.before), _text(one.after), limit=limit),
            )
            for one in changes[:MOST_SHOWN]
        ),
        waiting=len(changes),
        seen=seen_of(changes),
        left_out=tuple(dict.fromkeys((*catalogue.left_out, *taken))),
        health=health,
        cleaned=[one for one in catalogue.definitions if one.cleaned][:MOST_SHOWN],
    )


def seen_of(changes: Sequence[Change]) -> str:
    """Return a digest of changes that wait."""
    found = sorted((one.section, one.key, one.digest) for one in changes)
    return hashlib.sha256(msgspec.json.encode(found)).hexdigest()


def _text(value: Mapping[str, Any] | None) -> str:
    return "" if value is None else json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)


def _actor(visit: PageRequest) -> ManagementActor:
    return ManagementActor(
        caller=visit.visitor, peer=visit.visitor.peer, request_id=visit.request_id
    )
