"""What `[approvals]` can be told."""

from gatepost.table import Table

LONGEST_S = 43_200.0
"""Half a day: what is kept about a use of an approval (a day) must outlast the approval."""


class ApprovalRule(Table, frozen=True, kw_only=True):
    """Calls that need a person, and which; one `[[approvals.rules]]` table each."""

    tools: tuple[str, ...]
    """Names of tools, `*` for any letters, or `pack:NAME` for all tools of a pack."""
    when: str = ""
    """
    A condition in CEL over `arguments`, `caller` and `tool`; empty: every call. A call that it
    cannot be evaluated for needs approval.
    """
    approvals: int = 1
    """How many people have to approve, 1 or 2."""
    by: tuple[str, ...] = ()
    """
    Who may: `role:NAME` or `subject:ISSUER SUBJECT`, any of them. Default: the role `approver` for
    calls of people, and nobody for calls of machines.
    """
    reason: str = ""
    """Why, for the people who decide."""
    timeout_s: float | None = None
    """As `approvals.timeout_s`, which is the default; of several rules the shortest counts."""


class WebhookSettings(Table, frozen=True, kw_only=True):
    """Who is told of requests and decisions, besides the dashboard."""

    url: str = ""
    """Gets a signed POST for each event (Standard Webhooks); empty: nobody is told."""
    secret: str = ""
    """Where the signing secret stands (`env:NAME` or `file:PATH`): `whsec_` and base64."""


class ApprovalsSettings(Table, frozen=True, kw_only=True):
    """Which calls wait for a person, and for how long."""

    require: tuple[str, ...] = ()
    """Tools whose every call needs approval: patterns as in `approvals.rules`."""
    auto_approve: tuple[str, ...] = ()
    """Tools that need nobody, whatever else says so: patterns as in `approvals.rules`."""
    timeout_s: float = 300.0
    """
    Seconds until a call is rejected that nobody decides about. A decision counts as long: an
    approved call can be made, and a rejected one is refused without asking again.
    """
    rules: tuple[ApprovalRule, ...] = ()
    """Finer rules, one `[[approvals.rules]]` table each; all that fit a call count."""
    max_waiting_per_caller: int = 20
    """Requests of one caller that may wait; a further call is refused for the time being."""
    max_waiting_per_tenant: int = 200
    """Requests of one tenant that may wait."""
    keep_s: float = 2_592_000.0
    """
    Seconds that a decided request stays in the history, and that a rejected script is not asked
    about again; the default is 30 days.
    """
    webhook: WebhookSettings = WebhookSettings()
