"""The settings of `[approvals]`."""

from typing import Literal

from gatepost.config.settings_table import SettingsTable

LONGEST_S = 43_200.0
"""Half a day: the record of an approval's use is kept for a day and must outlast the approval."""


class ApprovalRule(SettingsTable, frozen=True, kw_only=True):
    """A rule for calls that need approval; one `[[approvals.rules]]` table each."""

    tools: tuple[str, ...]
    """Names of tools; `*` matches any characters, `pack:NAME` all tools of a pack."""
    when: str = ""
    """
    A CEL condition over `arguments`, `caller` and `tool`; empty: every call. If the condition
    cannot be evaluated for a call, the call needs approval.
    """
    approvals: int = 1
    """The number of people who must approve, 1 or 2."""
    by: tuple[str, ...] = ()
    """
    The approvers: `role:NAME` or `subject:ISSUER SUBJECT`; any one of them may approve. Default:
    the role `approver`; see `approvals.machines` for calls of machines.
    """
    reason: str = ""
    """The reason that approvers are shown."""
    timeout_s: float | None = None
    """As `approvals.timeout_s`, which is the default; the shortest of all matching rules counts."""


class WebhookSettings(SettingsTable, frozen=True, kw_only=True):
    """The webhook that receives approval requests and decisions."""

    url: str = ""
    """The URL that receives a signed POST for each event (Standard Webhooks); empty: no webhook."""
    secret: str = ""
    """A reference (`env:NAME` or `file:PATH`) to the signing secret: `whsec_` and base64."""


class NotificationSettings(SettingsTable, frozen=True, kw_only=True):
    """The tool that tells people of each request that waits, such as `chat_send`."""

    tool: str = ""
    """
    The name of the tool, which must need no approval; empty: none. Gatepost calls it in the
    request's tenant.
    """
    arguments: dict[str, str] = {}
    """Its arguments, such as `channel`, except the text."""
    text: str = "message"
    """The argument that gets the text: the tool, the time and the URL of the page."""


class ApprovalsSettings(SettingsTable, frozen=True, kw_only=True):
    """Which calls wait for approval, and for how long."""

    require: tuple[str, ...] = ()
    """Tools of which every call needs approval: patterns as in `approvals.rules`."""
    auto_approve: tuple[str, ...] = ()
    """Tools that never need approval, despite any rule: patterns as in `approvals.rules`."""
    machines: Literal["wait", "refuse"] = "wait"
    """
    The rule for a machine's call (client credentials) that needs approval if no rule names
    approvers: `wait` for any `approver` of its tenant, or `refuse` it at once. A call that a
    machine makes on behalf of a person (`act`) is then always refused.
    """
    timeout_s: float = 300.0
    """
    Seconds after which a request that is not decided is rejected. A decision is valid for the same
    time: an approved call can be made, and a rejected call is refused without a new request.
    """
    destructive: Literal["ask", "run"] | None = None
    """
    Whether calls of tools that are marked destructive wait for approval (`ask`), unless the call
    only reads, or run without approval (`run`). Default: `ask`, and `gatepost check` names the
    tools.
    """
    rules: tuple[ApprovalRule, ...] = ()
    """Rules, one `[[approvals.rules]]` table each; every rule that matches a call applies."""
    max_waiting_per_caller: int = 20
    """Requests of one caller that may wait; further calls that need approval are refused."""
    max_waiting_per_tenant: int = 200
    """Requests of one tenant that may wait."""
    max_grants_per_caller_and_tool: int = 50
    """
    Valid grants of one caller for one tool. A further one is refused; a condition can replace many
    grants for fixed arguments.
    """
    max_grants_per_tenant: int = 2_000
    """Valid grants of one tenant."""
    keep_s: float = 2_592_000.0
    """
    Seconds that a decided request stays in the history, and that a rejected script causes no new
    request; the default is 30 days.
    """
    denials: int = 10
    """
    Number of denied calls of one caller within `denials_window_s` after which all its calls are
    refused for `hold_s`; 0: never. Rejections by people and refusals by policy count.
    """
    denials_window_s: float = 600.0
    """The window, in seconds, in which denied calls are counted."""
    hold_s: float = 600.0
    """Seconds for which all calls of a caller are refused after too many denials."""
    webhook: WebhookSettings = WebhookSettings()
    notification: NotificationSettings = NotificationSettings()
