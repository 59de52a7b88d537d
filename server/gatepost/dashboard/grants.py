"""The grants page: list and revoke grants."""

from collections.abc import Iterable
from urllib.parse import urlencode

from gatepost.dashboard import argument_tree
from gatepost.dashboard.argument_tree import Node
from gatepost.dashboard.grant_form import ANY_CALL
from gatepost.dashboard.page import PageRequest, PageResponse
from gatepost.dashboard.templating import Templates
from gatepost.policy.approvals.approval_request import ApprovalGrant, Undecidable
from gatepost.policy.approvals.request_lists import cursor_of, place_at
from gatepost.policy.approvals.service import ApprovalService

SHOWN_BYTES, PAGE_BYTES = 4_096, 32_768
"""
The most bytes of arguments that are shown of one grant, and of all on a page: a page of a hundred
trees of thousands of values would delay all other requests for seconds.
"""


class GrantsPage:
    """Render the grants page."""

    def __init__(self, view: Templates, approvals: ApprovalService) -> None:
        self._view, self._approvals = view, approvals

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
        return PageResponse(location="/grants")

    async def _page(
        self, page_request: PageRequest, *, status: int = 200, problem: str = ""
    ) -> PageResponse:
        after = place_at(page_request.query.get("after", ""))
        grants, later = await self._approvals.granting.valid_page(page_request.tenant, after)
        with_arguments = await self._view.compute(page_request, _with_arguments, grants)
        return await self._view.page(
            "grants.html",
            page_request,
            tab="/grants",
            status=status,
            problem=problem,
            grants=with_arguments,
            any_arguments=ANY_CALL,
            later=f"?{urlencode({'after': cursor_of(later)})}" if later else "",
        )


def _with_arguments(
    grants: Iterable[ApprovalGrant],
) -> list[tuple[ApprovalGrant, Node | None]]:
    """Return each grant with its arguments, or None if they are too long for the page."""
    remaining, nodes = PAGE_BYTES, list[tuple[ApprovalGrant, Node | None]]()
    for grant in grants:
        size = len(grant.arguments)
        if size > min(SHOWN_BYTES, remaining):
            nodes.append((grant, None))
        else:
            remaining -= size
            nodes.append((grant, argument_tree.read(grant.arguments)))
    return nodes
