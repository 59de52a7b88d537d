"""Check `[approvals]`."""

import math
from collections.abc import Iterator
from urllib.parse import urlsplit

from gatepost.check.pack_loading import LoadedPacks
from gatepost.config.approvals import LONGEST_S, ApprovalRule, ApprovalsSettings
from gatepost.config.references import REFERENCE, UnresolvedReference, resolve
from gatepost.config.settings import Config
from gatepost.policy.approvals.conditions import BadCondition, Condition, NoLibrary
from gatepost.policy.approvals.policies import DEFAULT_APPROVERS, ROLE, SUBJECT, ApprovalPolicy
from gatepost.policy.approvals.tool_policies import (
    PACK,
    asks_as_destructive,
    matches,
    matches_any,
    plan_of,
)
from gatepost.policy.approvals.webhook import BadSecret, key_of
from gatepost.tools.offers.tenant_offers import UPSTREAM_PREFIX
from gatepost_authz.config import Problem

PEOPLE = (1, 2)
QUOTAS = (
    *("max_waiting_per_caller", "max_waiting_per_tenant"),
    *("max_grants_per_caller_and_tool", "max_grants_per_tenant"),
)
SHORTEST_HOLD_S, LONGEST_HOLD_S = 1.0, 86_400.0


def problems(config: Config, loaded_packs: LoadedPacks) -> Iterator[Problem]:
    """Yield the problems of the approval settings."""
    settings = config.approvals
    roles = {role for issuer in config.issuers for role in issuer.roles}
    for at, rule in enumerate(settings.rules):
        table = f"approvals.rules[{at}]"
        yield from _condition(rule, table)
        yield from _approver_problems(rule, table, roles)
        yield from _people(rule, table)
    yield from _numbers(settings)
    yield from _patterns(settings, loaded_packs)
    yield from _destructive(config, loaded_packs)
    yield from _no_approver(config, loaded_packs, roles)
    yield from _webhook(settings, development=config.development)
    yield from _notification(settings, loaded_packs)


def _condition(rule: ApprovalRule, table: str) -> Iterator[Problem]:
    if not rule.when:
        return
    try:
        Condition(rule.when)
    except NoLibrary as missing:
        hint = "pip install 'gatepost[cel]'"
        yield Problem("config.E084", str(missing).partition(":")[0], hint, setting=f"{table}.when")
    except BadCondition as error:
        yield Problem(
            "config.E080",
            f"the condition {rule.when[:60]!r} cannot be used: {error}",
            'write CEL over arguments, caller and tool: when = "arguments.amount > 100"',
            setting=f"{table}.when",
        )


def _approver_problems(rule: ApprovalRule, table: str, roles: set[str]) -> Iterator[Problem]:
    for at, entry in enumerate(rule.by):
        setting = f"{table}.by[{at}]"
        role = entry.removeprefix(ROLE)
        issuer, _, subject = entry.removeprefix(SUBJECT).partition(" ")
        is_role = entry.startswith(ROLE) and role
        if not is_role and not (entry.startswith(SUBJECT) and issuer and subject):
            yield Problem(
                "config.E081",
                f"{entry!r} is not an approver",
                'write "role:NAME" or "subject:ISSUER SUBJECT"',
                setting=setting,
            )
        elif is_role and role not in roles:
            yield Problem(
                "config.W082",
                f"no issuer maps the role {role!r}, so no approver can have it",
                f"add roles = {{ {role} = {{ claim = ..., value = ... }} }} to an issuer",
                "warning",
                setting,
            )


def _people(rule: ApprovalRule, table: str) -> Iterator[Problem]:
    if rule.approvals not in PEOPLE:
        yield Problem(
            "config.E082",
            f"`approvals` is {rule.approvals}, but a rule can require 1 or 2 approvals",
            "write approvals = 1 or approvals = 2",
            setting=f"{table}.approvals",
        )
    people = {entry for entry in rule.by if entry.startswith(SUBJECT)}
    if rule.by and len(people) == len(rule.by) and len(people) < rule.approvals:
        yield Problem(
            "config.E082",
            "the rule requires two approvals, but `by` names one person",
            "add a second person or a role",
            setting=f"{table}.by",
        )


def _numbers(settings: ApprovalsSettings) -> Iterator[Problem]:
    limits = {"approvals.timeout_s": settings.timeout_s}
    for at, rule in enumerate(settings.rules):
        if rule.timeout_s is not None:
            limits[f"approvals.rules[{at}].timeout_s"] = rule.timeout_s
    for setting, seconds in limits.items():
        if not 0 < seconds <= LONGEST_S:
            message = f"`{setting}` must be more than 0 and at most {LONGEST_S:g}"
            yield Problem("config.E016", message, setting=setting)
    for name in QUOTAS:
        if getattr(settings, name) < 1:
            setting = f"approvals.{name}"
            yield Problem("config.E016", f"`{setting}` must be more than 0", setting=setting)
    yield from _hold_problems(settings)


def _hold_problems(settings: ApprovalsSettings) -> Iterator[Problem]:
    ranges = {
        "keep_s": (0.0, math.inf),
        "denials": (0.0, math.inf),
        "denials_window_s": (SHORTEST_HOLD_S, LONGEST_HOLD_S),
        "hold_s": (SHORTEST_HOLD_S, LONGEST_HOLD_S),
    }
    for name, (low, high) in ranges.items():
        if not low <= getattr(settings, name) <= high:
            up_to = f" and at most {high:g}" if high < math.inf else ""
            message = f"`approvals.{name}` must be at least {low:g}{up_to}"
            yield Problem("config.E016", message, setting=f"approvals.{name}")


def _patterns(settings: ApprovalsSettings, loaded_packs: LoadedPacks) -> Iterator[Problem]:
    lists = {"approvals.require": settings.require, "approvals.auto_approve": settings.auto_approve}
    lists |= {f"approvals.rules[{at}].tools": rule.tools for at, rule in enumerate(settings.rules)}
    for setting, patterns in lists.items():
        for at, pattern in enumerate(patterns):
            if pattern.removeprefix(PACK).startswith(UPSTREAM_PREFIX):
                continue
            if not any(matches(pattern, tool) for tool in loaded_packs.tools):
                yield Problem(
                    "config.W080",
                    f"{pattern!r} matches no enabled tool",
                    "write a tool's name, `*` for any letters, or pack:NAME",
                    "warning",
                    f"{setting}[{at}]",
                )
    for at, pattern in enumerate(settings.require):
        both = [tool for tool in loaded_packs.tools if matches(pattern, tool)]
        freed = [tool.name for tool in both if matches_any(settings.auto_approve, tool)]
        if freed:
            yield Problem(
                "config.W081",
                f"{pattern!r} is overridden by `approvals.auto_approve` for {', '.join(freed[:5])}",
                "remove it from one of the lists; auto_approve takes precedence",
                "warning",
                f"approvals.require[{at}]",
            )


def _notification(settings: ApprovalsSettings, loaded_packs: LoadedPacks) -> Iterator[Problem]:
    name = settings.notification.tool
    if not name:
        return
    tools = [tool for tool in loaded_packs.tools if tool.name == name]
    if not tools:
        yield Problem(
            "config.E086",
            f"no enabled tool is called {name!r}, so no person is told of waiting requests",
            "name a tool that sends messages, such as chat_send",
            setting="approvals.notification.tool",
        )
    elif plan_of(settings, tools):
        yield Problem(
            "config.E086",
            f"`{name}` needs approval, so it cannot tell of requests that wait for approval",
            f'add "{name}" to approvals.auto_approve, or name another tool',
            setting="approvals.notification.tool",
        )


def _destructive(config: Config, loaded_packs: LoadedPacks) -> Iterator[Problem]:
    settings = config.approvals
    if settings.destructive is not None or config.development:
        return
    names = [
        tool.name
        for tool in loaded_packs.tools
        if asks_as_destructive(settings, tool)
        and not tool.approval
        and not matches_any((*settings.require, *settings.auto_approve), tool)
    ]
    if names:
        yield Problem(
            "config.W083",
            "calls of these tools need approval because they are marked destructive: "
            + ", ".join(sorted(names)),
            'set approvals.destructive = "ask" to keep this, or "run" to run them without '
            "approval; approvals.auto_approve exempts single tools",
            "warning",
            "approvals.destructive",
        )


def _no_approver(config: Config, loaded_packs: LoadedPacks, roles: set[str]) -> Iterator[Problem]:
    try:
        plan = plan_of(config.approvals, loaded_packs.tools)
    except BadCondition:
        return  # reported already
    usual = DEFAULT_APPROVERS[0].removeprefix(ROLE)
    open_ones = [name for name, policy in plan.items() if _asks_usual(policy)]
    if open_ones and usual not in roles:
        yield Problem(
            "config.W082",
            f"calls of {', '.join(sorted(open_ones)[:5])} need an {usual}, but no issuer maps that "
            "role, so only the command line can approve",
            f"add roles = {{ {usual} = {{ claim = ..., value = ... }} }} to an issuer",
            "warning",
            "approvals",
        )


def _asks_usual(policy: ApprovalPolicy) -> bool:
    """Return whether a person's call may need the default approver."""
    if any(clause.condition is None and clause.rule.by for clause in policy.clauses):
        return False
    return policy.always or policy.writes or any(not clause.rule.by for clause in policy.clauses)


def _webhook(settings: ApprovalsSettings, *, development: bool) -> Iterator[Problem]:
    hook = settings.webhook
    if not hook.url:
        return
    try:
        parts = urlsplit(hook.url)
        secure, host = parts.scheme == "https", parts.hostname
    except ValueError:
        secure, host = False, None
    if not host or not (secure or development):
        yield Problem(
            "config.E083",
            "the webhook URL must use https",
            'write url = "https://…"',
            setting="approvals.webhook.url",
        )
    setting = "approvals.webhook.secret"
    if not REFERENCE.match(hook.secret) or hook.secret.startswith("secret:"):
        # The value is not shown, because it may be the secret itself.
        yield Problem(
            "config.E083",
            "`approvals.webhook.secret` holds a value instead of a reference",
            'write secret = "env:NAME" or "file:PATH"',
            setting=setting,
        )
        return
    try:
        key_of(resolve(hook.secret))
    except UnresolvedReference as error:
        yield Problem("config.E083", str(error), "set it where the server runs", setting=setting)
    except BadSecret as refusal:
        yield Problem("config.E083", str(refusal), "openssl rand -base64 32", setting=setting)
