"""What a page with long arguments costs the other requests of the process."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gatepost import CallContext
from gatepost.dashboard.assets import Assets
from gatepost.dashboard.file_preview import FilePreviews
from gatepost.dashboard.inbox import InboxPage
from gatepost.dashboard.live import LiveInbox
from gatepost.dashboard.page import PageRequest, PageResponse
from gatepost.dashboard.request_page import RequestPage
from gatepost.dashboard.templating import Templates
from gatepost.policy.approvals.approval_request import SignedInApprover
from gatepost.tools.calls.redaction import Redaction
from tests.support.measuring import count_lines, each
from tests.support.runners import BOB, ApprovalDeployment, ApprovalReplica

ROWS, MANY_ROWS = 200, 1_500


def rows(count: int) -> list[Any]:
    return [{"a": 1, "b": "x", "c": None}] * count


def hidden_characters(count: int) -> list[Any]:
    """Return a text of characters of which each is shown as an escape with its name."""
    return ["\u202e" * (count * 20)]


def _pages(replica: ApprovalReplica) -> tuple[InboxPage, RequestPage]:
    view = Templates(Assets().path)
    live = LiveInbox(replica.service, replica.deployment.shared_store)

    def no_workspace(tenant: str) -> Any:
        raise NotImplementedError

    def no_settings(kind: type[Any]) -> Any:
        raise NotImplementedError

    files = FilePreviews(no_workspace, Redaction(), no_settings)
    review = RequestPage(view, replica.service, live, targets=files, tools=lambda: replica.tools)
    return InboxPage(view, replica.service, live), review


def _lines_of_a_page(data: list[Any], page: str, query: Mapping[str, str]) -> int:
    """Return the lines that run on the event loop while a page of one request is made."""
    deployment = ApprovalDeployment(require=["keep"])

    async def keep(ctx: CallContext, data: list[Any]) -> str:
        """Keep rows."""
        return "kept"

    deployment.pack.tool(name="keep")(keep)
    replica = deployment.replica()
    inbox, review = _pages(replica)
    user = SignedInApprover(**msgspec.structs.asdict(BOB), peer="")
    with asyncio.Runner() as runner:
        raw = json.dumps({"data": data}, ensure_ascii=False).encode()
        request = runner.run(replica.asked("keep", raw=raw))
        page_request = PageRequest(user=user, path={"id": request.id}, query=query)
        pages: dict[str, PageResponse] = {}

        async def show() -> None:
            pages[page] = await (inbox if page == "inbox" else review).show(page_request)

        lines = count_lines(lambda: runner.run(show()))
    assert "keep" in (pages[page].html or "")
    return lines


@each(
    ("page", "data", "query"),
    [
        ("request", rows, {}),
        ("request", hidden_characters, {}),
        ("request", rows, {"edit": "1"}),
        ("request", hidden_characters, {"edit": "1"}),
        ("inbox", rows, {}),
    ],
    ids=["rows", "hidden characters", "rows to edit", "hidden characters to edit", "inbox"],
)
def test_a_page_with_long_arguments_is_made_in_a_thread(
    page: str, data: Callable[[int], list[Any]], query: Mapping[str, str]
) -> None:
    """A caller chooses the arguments, and its page would delay all tenants by half a second."""
    few = _lines_of_a_page(data(ROWS), page, query)

    assert _lines_of_a_page(data(MANY_ROWS), page, query) - few < 1_000


def test_templates_are_compiled_in_a_thread() -> None:
    """This takes a tenth of a second for the first page after a start."""
    assert _lines_of_a_page([1], "request", {}) < 5_000
