"""Calls that were approved before they are made, and taking that back."""

from gatepost.approvals.desk import Desk
from gatepost.approvals.request import Undecidable
from gatepost.dashboard import reading
from gatepost.dashboard.sheet import Sheet
from gatepost.dashboard.terms import ANY
from gatepost.dashboard.visit import Answer, Visit, redirect


class Grants:
    """The page of grants."""

    def __init__(self, sheet: Sheet, desk: Desk) -> None:
        self._sheet, self._desk = sheet, desk

    async def show(self, visit: Visit) -> Answer:
        """Those in force, the oldest first."""
        return await self._page(visit)

    async def revoke(self, visit: Visit) -> Answer:
        """End one; ended already is as good."""
        try:
            await self._desk.revoke_grant(visit.tenant, visit.path["id"], visit.visitor)
        except Undecidable as why:
            return await self._page(visit, status=409, problem=str(why))
        return redirect("/grants")

    async def _page(self, visit: Visit, *, status: int = 200, problem: str = "") -> Answer:
        grants = await self._desk.grants(visit.tenant)
        return self._sheet.page(
            "grants.html",
            visit,
            here="/grants",
            status=status,
            problem=problem,
            grants=[(one, reading.read(one.arguments)) for one in grants],
            any_arguments=ANY,
        )
