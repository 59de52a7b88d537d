"""The grants page: list and revoke grants."""

from gatepost.dashboard import argument_tree
from gatepost.dashboard.grant_form import ANY
from gatepost.dashboard.navigation import PageLayout
from gatepost.dashboard.page import PageRequest, PageResponse, redirect
from gatepost.policy.approvals.request import Undecidable
from gatepost.policy.approvals.service import ApprovalService


class GrantsPage:
    """Render the grants page."""

    def __init__(self, sheet: PageLayout, approvals: ApprovalService) -> None:
        self._sheet, self._approvals = sheet, approvals

    async def show(self, visit: PageRequest) -> PageResponse:
        """Show the grants in force, oldest first."""
        return await self._page(visit)

    async def revoke(self, visit: PageRequest) -> PageResponse:
        """Revoke a grant; revoking an ended grant does nothing."""
        try:
            await self._approvals.revoke_grant(visit.tenant, visit.path["id"], visit.visitor)
        except Undecidable as why:
            return await self._page(visit, status=409, problem=str(why))
        return redirect("/grants")

    async def _page(
        self, visit: PageRequest, *, status: int = 200, problem: str = ""
    ) -> PageResponse:
        grants = await self._approvals.grants(visit.tenant)
        return self._sheet.page(
            "grants.html",
            visit,
            here="/grants",
            status=status,
            problem=problem,
            grants=[(one, argument_tree.read(one.arguments)) for one in grants],
            any_arguments=ANY,
        )
