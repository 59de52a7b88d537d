"""Everything about approvals that lives as long as a process: the desk, and who is told."""

from collections.abc import Callable, Iterable, Mapping

from gatepost.approvals.courier import Courier
from gatepost.approvals.desk import Desk
from gatepost.approvals.herald import Herald
from gatepost.approvals.minutes import Minutes
from gatepost.approvals.page import Page, no_page, page_of
from gatepost.approvals.policy import plan_of
from gatepost.approvals.stage import Approval
from gatepost.approvals.webhook import Webhook, key_of
from gatepost.audit.journal import Journal
from gatepost.config.dashboard import is_on
from gatepost.config.references import resolve
from gatepost.guard.once import Runs
from gatepost.keyring import KeyRing
from gatepost.outbound.client import Client
from gatepost.settings import Config
from gatepost.stores.api import Records, Relay
from gatepost.tools.api import Tool
from gatepost.tools.redaction import Redaction
from gatepost_authz.caller import TenantContext

NO_TENANT = ""
"""Whose connections the server's own requests use; no tenant has this id."""


class Reviews:
    """The desk with its record and its webhook, in a server or in a command."""

    def __init__(
        self,
        records: Records,
        relay: Relay,
        keyring: KeyRing,
        redaction: Redaction,
        journal: Journal,
        outbound: Client,
    ) -> None:
        self._relay, self._redaction = relay, redaction
        self.webhook = Webhook(lambda: outbound.of(NO_TENANT))
        self.courier = Courier(records, self.webhook)
        told = Minutes(journal)
        herald = Herald(relay, self.courier, minutes=told, notices=self.webhook.notice)
        self.desk = Desk(records, keyring, redaction, herald)

    def apply(self, config: Config, tools: Iterable[Tool]) -> None:
        """Take up which calls need a person from now on, and who is told of it."""
        by_name: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        settings = config.approvals
        self.desk.apply(settings, plan_of(settings, by_name.values()), by_name)
        hook = settings.webhook
        key = key_of(resolve(hook.secret)) if hook.url else b""
        self.webhook.apply(hook.url, key, pages(config))

    def stages(
        self, config: Config, runs: Runs, is_cut: Callable[[TenantContext], bool]
    ) -> list[Approval]:
        """What asks at the desk; nothing where no tool needs anybody."""
        if not self.desk.plan:
            return []
        return [
            Approval(
                self.desk,
                runs,
                self._relay,
                redaction=self._redaction,
                timeout_s=config.tools.timeout_s,
                max_result_bytes=config.tools.max_result_bytes,
                page=pages(config),
                is_cut=is_cut,
            )
        ]


def pages(config: Config) -> Page:
    """Where requests are decided: nobody is sent to a page that is not served."""
    return page_of(config.resource) if is_on(config) else no_page
