"""Judges `[approvals]`."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from gatepost.approvals.condition import BadCondition, Condition, NoLibrary
from gatepost.approvals.policy import ROLE, SUBJECT, USUAL, Demand, fits, means, plan_of
from gatepost.approvals.settings import LONGEST_S, ApprovalRule, ApprovalsSettings
from gatepost.approvals.webhook import BadSecret, key_of
from gatepost.config.references import REFERENCE, UnresolvedReference, resolve
from gatepost.config.toolbox import Toolbox
from gatepost.settings import Config
from gatepost_authz.config import Problem

PEOPLE = (1, 2)


def problems(config: Config, toolbox: Toolbox) -> Iterator[Problem]:
    """What keeps calls from being approved as the operator means it."""
    settings = config.approvals
    roles = {role for issuer in config.issuers for role in issuer.roles}
    for at, rule in enumerate(settings.rules):
        place = f"approvals.rules[{at}]"
        yield from _condition(rule, place)
        yield from _by(rule, place, roles)
        yield from _people(rule, place)
    yield from _numbers(settings)
    yield from _patterns(settings, toolbox)
    yield from _nobody(config, toolbox, roles)
    yield from _webhook(settings, development=config.development)


def _condition(rule: ApprovalRule, place: str) -> Iterator[Problem]:
    if not rule.when:
        return
    try:
        Condition(rule.when)
    except NoLibrary as missing:
        hint = "pip install 'gatepost[cel]'"
        yield Problem("config.E084", str(missing).partition(":")[0], hint, setting=f"{place}.when")
    except BadCondition as bad:
        yield Problem(
            "config.E080",
            f"the condition {rule.when[:60]!r} cannot be used: {bad}",
            'write CEL over arguments, caller and tool: when = "arguments.amount > 100"',
            setting=f"{place}.when",
        )


def _by(rule: ApprovalRule, place: str, roles: set[str]) -> Iterator[Problem]:
    for at, entry in enumerate(rule.by):
        setting = f"{place}.by[{at}]"
        role = entry.removeprefix(ROLE)
        issuer, _, subject = entry.removeprefix(SUBJECT).partition(" ")
        is_role = entry.startswith(ROLE) and role
        if not is_role and not (entry.startswith(SUBJECT) and issuer and subject):
            yield Problem(
                "config.E081",
                f"{entry!r} names nobody who could approve",
                'write "role:NAME" or "subject:ISSUER SUBJECT"',
                setting=setting,
            )
        elif is_role and role not in roles:
            yield Problem(
                "config.W082",
                f"no issuer's tokens give the role {role!r}, so nobody has it",
                f"add roles = {{ {role} = {{ claim = ..., value = ... }} }} to an issuer",
                "warning",
                setting,
            )


def _people(rule: ApprovalRule, place: str) -> Iterator[Problem]:
    if rule.approvals not in PEOPLE:
        yield Problem(
            "config.E082",
            f"{rule.approvals} people cannot be asked for",
            "write approvals = 1 or approvals = 2",
            setting=f"{place}.approvals",
        )
    named = {entry for entry in rule.by if entry.startswith(SUBJECT)}
    if rule.by and len(named) == len(rule.by) and len(named) < rule.approvals:
        yield Problem(
            "config.E082",
            "two people have to approve, and `by` names one",
            "name a second one, or a role",
            setting=f"{place}.by",
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
    numbers = {
        "max_waiting_per_caller": settings.max_waiting_per_caller,
        "max_waiting_per_tenant": settings.max_waiting_per_tenant,
    }
    for name, number in numbers.items():
        if number < 1:
            setting = f"approvals.{name}"
            yield Problem("config.E016", f"`{setting}` must be more than 0", setting=setting)
    if settings.keep_s < 0:
        message = "`approvals.keep_s` must not be negative"
        yield Problem("config.E016", message, setting="approvals.keep_s")


def _patterns(settings: ApprovalsSettings, toolbox: Toolbox) -> Iterator[Problem]:
    lists = {"approvals.require": settings.require, "approvals.auto_approve": settings.auto_approve}
    lists |= {f"approvals.rules[{at}].tools": one.tools for at, one in enumerate(settings.rules)}
    for setting, patterns in lists.items():
        for at, pattern in enumerate(patterns):
            if not any(means(pattern, tool) for tool in toolbox.tools):
                yield Problem(
                    "config.W080",
                    f"{pattern!r} means no tool that is enabled",
                    "write a tool's name, `*` for any letters, or pack:NAME",
                    "warning",
                    f"{setting}[{at}]",
                )
    for at, pattern in enumerate(settings.require):
        both = [tool for tool in toolbox.tools if means(pattern, tool)]
        freed = [tool.name for tool in both if fits(settings.auto_approve, tool)]
        if freed:
            yield Problem(
                "config.W081",
                f"{pattern!r} is required, and yet `approvals.auto_approve` frees "
                f"{', '.join(freed[:5])}",
                "take it out of one of the two; auto_approve wins",
                "warning",
                f"approvals.require[{at}]",
            )


def _nobody(config: Config, toolbox: Toolbox, roles: set[str]) -> Iterator[Problem]:
    try:
        plan = plan_of(config.approvals, toolbox.tools)
    except BadCondition:
        return  # told already
    usual = USUAL[0].removeprefix(ROLE)
    open_ones = [name for name, demand in plan.items() if _asks_usual(demand)]
    if open_ones and usual not in roles:
        yield Problem(
            "config.W082",
            f"calls of {', '.join(sorted(open_ones)[:5])} wait for an {usual}, and no issuer's "
            "tokens give that role: only the command line can approve",
            f"add roles = {{ {usual} = {{ claim = ..., value = ... }} }} to an issuer",
            "warning",
            "approvals",
        )


def _asks_usual(demand: Demand) -> bool:
    """Whether a person's call may need the usual approver."""
    if any(clause.condition is None and clause.rule.by for clause in demand.clauses):
        return False
    return demand.always or any(not clause.rule.by for clause in demand.clauses)


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
            "the webhook is sent by https only",
            'write url = "https://…"',
            setting="approvals.webhook.url",
        )
    setting = "approvals.webhook.secret"
    if not REFERENCE.match(hook.secret) or hook.secret.startswith("secret:"):
        # The value is not shown: somebody may have put the secret itself here.
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
    except BadSecret as bad:
        yield Problem("config.E083", str(bad), "openssl rand -base64 32", setting=setting)
