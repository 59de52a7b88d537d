"""The pages there are."""

from gatepost.audit.trail import Trail
from gatepost.config.references import plain
from gatepost.dashboard.catalogue import Catalogue
from gatepost.dashboard.evidence import Evidence
from gatepost.dashboard.grants import Grants
from gatepost.dashboard.history import History
from gatepost.dashboard.inbox import Inbox
from gatepost.dashboard.live import Live
from gatepost.dashboard.review import Review
from gatepost.dashboard.sheet import Sheet
from gatepost.dashboard.target import Targets
from gatepost.dashboard.usage import Usage
from gatepost.dashboard.view import View
from gatepost.dashboard.visit import Page
from gatepost.services import Services
from gatepost.settings import Config


def pages(config: Config, services: Services, view: View) -> tuple[Page, ...]:
    """The dashboard's routing table."""
    sheet, desk = Sheet(view), services.approvals
    live = Live(desk, services.relay)
    targets = Targets(services.workspaces.of, services.redaction, vault=config.packs.vault.folder)
    inbox, history, grants = Inbox(sheet, desk, live), History(sheet, desk), Grants(sheet, desk)
    review = Review(sheet, desk, live, targets=targets, tools=lambda: services.registry.tools)
    catalogue = Catalogue(
        sheet,
        runner=lambda: services.runner,
        plan=lambda: desk.plan,
        seen=services.callers.lately,
        baseline=frozenset(config.scopes.baseline),
        implied=config.scopes.implied,
    )
    trail = Trail(services.records)
    evidence = Evidence(sheet, trail, services.records)
    usage = Usage(
        sheet,
        trail=trail,
        limits=services.limits,
        tools=lambda: services.registry.tools,
        several=plain(config.storage.database).startswith("postgresql:"),
        seen=services.callers.lately,
    )
    one = "/approvals/{id}"
    return (
        Page(path="", get=inbox.show),
        Page(path="/live", get=inbox.live, background=True),
        Page(path=one, get=review.show),
        Page(path=f"{one}/live", get=review.live, background=True),
        Page(path=f"{one}/arguments", get=review.arguments),
        Page(path=f"{one}/approve", post=review.approve),
        Page(path=f"{one}/edit", post=review.approve_edited),
        Page(path=f"{one}/reject", post=review.reject),
        Page(path="/history", get=history.show),
        Page(path="/grants", get=grants.show),
        Page(path="/grants/{id}/revoke", post=grants.revoke),
        Page(path="/audit", get=evidence.search),
        Page(path="/audit/{number}", get=evidence.show),
        Page(path="/tools", get=catalogue.show),
        Page(path="/usage", get=usage.show),
    )
