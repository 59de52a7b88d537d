"""The dashboard's routing table."""

from importlib import import_module

from gatepost.config.packs import by_type
from gatepost.config.references import resolved_setting
from gatepost.config.settings import Config
from gatepost.dashboard.audit import AuditPages
from gatepost.dashboard.file_preview import FilePreviews
from gatepost.dashboard.grants import GrantsPage
from gatepost.dashboard.history import HistoryPage
from gatepost.dashboard.inbox import InboxPage
from gatepost.dashboard.live import LiveInbox
from gatepost.dashboard.operations import operator_routes
from gatepost.dashboard.page import DECIDERS, PageRoute
from gatepost.dashboard.request_page import RequestPage
from gatepost.dashboard.templating import Templates
from gatepost.dashboard.tools import ToolsPage
from gatepost.dashboard.usage import UsagePage
from gatepost.runtime.process_reports import has_operators
from gatepost.runtime.services import Services
from gatepost_authz.check import OPERATOR


def pages(config: Config, services: Services, view: Templates) -> tuple[PageRoute, ...]:
    """Return the dashboard's routing table."""
    approvals = services.approvals
    live = LiveInbox(approvals, services.shared_store)
    tables = by_type(config.packs, config.network)
    targets = FilePreviews(services.workspaces.for_tenant, services.redaction, tables.__getitem__)
    inbox = InboxPage(view, approvals, live)
    history, grants = HistoryPage(view, approvals), GrantsPage(view, approvals)
    review = RequestPage(
        view, approvals, live, targets=targets, tools=lambda: services.registry.tools
    )
    catalogue = ToolsPage(
        view,
        runner=lambda: services.runner,
        policies=lambda: approvals.policies,
        recent_callers=services.callers.lately,
        baseline=frozenset(config.scopes.baseline),
        implied=config.scopes.implied,
    )
    evidence = AuditPages(view, services.audit_writer.store)
    usage = UsagePage(
        view,
        audit_store=services.audit_writer.store,
        limits=services.limits,
        tools=lambda: services.registry.tools,
        several=resolved_setting(config.storage.database).startswith("postgresql:"),
        recent_callers=services.callers.lately,
        holds_of=services.revocations.holds,
    )
    path = "/approvals/{id}"
    return (
        PageRoute(path="", get=inbox.show, roles=DECIDERS | {OPERATOR}),
        PageRoute(path="/live", get=inbox.live, background=True),
        PageRoute(path=path, get=review.show),
        PageRoute(path=f"{path}/live", get=review.live, background=True),
        PageRoute(path=f"{path}/arguments", get=review.arguments),
        PageRoute(path=f"{path}/approve", post=review.approve),
        PageRoute(path=f"{path}/edit", post=review.approve_edited),
        PageRoute(path=f"{path}/reject", post=review.reject),
        PageRoute(path="/history", get=history.show),
        PageRoute(path="/grants", get=grants.show),
        PageRoute(path="/grants/{id}/revoke", post=grants.revoke),
        PageRoute(path="/audit", get=evidence.search),
        PageRoute(path="/audit/{record}", get=evidence.show),
        PageRoute(path="/tools", get=catalogue.show),
        *(upstream_routes(view, services) if config.has_upstreams else ()),
        PageRoute(path="/usage", get=usage.show),
        *(operator_routes(view, services) if has_operators(services.issuers) else ()),
    )


def upstream_routes(view: Templates, services: Services) -> tuple[PageRoute, ...]:
    """Return the routes of the upstreams page, which is for administrators."""
    # Imported here, because a server without upstreams does not load these pages.
    page_routes: tuple[PageRoute, ...] = import_module("gatepost.dashboard.upstreams").routes(
        view, services.upstreams.services
    )
    return page_routes
