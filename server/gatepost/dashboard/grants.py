"""The grants page: list and revoke grants."""

from urllib.parse import urlencode

from gatepost.dashboard import argument_tree
from gatepost.dashboard.grant_form import ANY_CALL
from gatepost.dashboard.navigation import PageLayout
from gatepost.dashboard.page import PageRequest, PageResponse, redirect
from gatepost.policy.approvals.approval_request import Undecidable
from gatepost.policy.approvals.request_lists import cursor_of, place_at
from gatepost.policy.approvals.service import ApprovalService


class GrantsPage:
    """Render the grants page."""

    def __init__(self, layout: PageLayout, approvals: ApprovalService) -> None:
        self._layout, self._approvals = layout, approvals

    async def show(self, page_request: PageRequest) -> PageResponse:
        """Show a page of the grants in force, oldest first."""
        return await self._page(page_request)

    async def revoke(self, page_request: PageRequest) -> PageResponse:
        """Revoke a grant; revoking an ended grant does nothing."""
        try:
            await self._approvals.revoke_grant(
                page_request.tenant, page_request.path["id"], page_request.user
            )
        except Undecidable as undecidable:
            return await self._page(page_request, status=409, problem=str(undecidable))
        return redirect("/grants")

    async def _page(
        self, page_request: PageRequest, *, status: int = 200, problem: str = ""
    ) -> PageResponse:
        after = place_at(page_request.query.get("after", ""))
        grants, later = await self._approvals.granting.valid_page(page_request.tenant, after)
        return self._layout.page(
            "grants.html",
            page_request,
            tab="/grants",
            status=status,
            problem=problem,
            grants=[(grant, argument_tree.read(grant.arguments)) for grant in grants],
            any_arguments=ANY_CALL,
            later=f"?{urlencode({'after': cursor_of(later)})}" if later else "",
        )
