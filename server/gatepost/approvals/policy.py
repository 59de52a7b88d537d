"""Which calls need a person, and which; decided at the start, tool by tool."""

import fnmatch
import hashlib
from collections.abc import Iterable, Mapping

import msgspec

from gatepost.approvals.condition import Condition, Subject
from gatepost.approvals.request import Approver, Operator
from gatepost.approvals.settings import ApprovalRule, ApprovalsSettings
from gatepost.tools.api import Offer, Tool
from gatepost_authz.caller import SubjectKind, TenantContext

PACK = "pack:"
ROLE, SUBJECT = "role:", "subject:"
USUAL = ("role:approver",)
"""Who decides about calls of people where no rule says it."""


class Need(msgspec.Struct, frozen=True):
    """What one call needs before it runs."""

    approvals: int
    by: tuple[tuple[str, ...], ...]
    """One of each group has to be true of whoever decides; empty: nobody is named."""
    reason: str
    timeout_s: float

    def of(self, kind: SubjectKind) -> tuple[tuple[str, ...], ...]:
        """The same for a caller of that kind; nothing for a machine that no rule speaks of."""
        return self.by or ((USUAL,) if kind == "user" else ())

    def within(self, kind: SubjectKind, needed: int, by: Iterable[tuple[str, ...]]) -> bool:
        """Whether so many people, each of whom is one of each group of *by*, are enough for it."""
        return self.approvals <= needed and set(self.of(kind)) <= set(by)


class Clause(msgspec.Struct, frozen=True):
    """One rule that fits a tool."""

    rule: ApprovalRule
    condition: Condition | None

    def counts(self, subject: Subject) -> bool:
        """Whether it fits the call; also where that cannot be found out."""
        return self.condition is None or self.condition.holds(subject) is not False


class Demand(msgspec.Struct, frozen=True):
    """All that says something about calls of one tool."""

    always: bool
    """The tool's declaration or `approvals.require`."""
    clauses: tuple[Clause, ...]
    timeout_s: float
    version: str
    """Another one where something else would decide."""

    def need(self, subject: Subject) -> Need | None:
        """What the call needs; None: nobody."""
        rules = [clause.rule for clause in self.clauses if clause.counts(subject)]
        if not rules and not self.always:
            return None
        limits = [rule.timeout_s for rule in rules if rule.timeout_s is not None]
        return Need(
            approvals=max([1, *(rule.approvals for rule in rules)]),
            by=tuple(dict.fromkeys(rule.by for rule in rules if rule.by)),
            reason=" ".join(dict.fromkeys(rule.reason for rule in rules if rule.reason)),
            timeout_s=min(limits) if limits else self.timeout_s,
        )

    def told(self) -> str:
        """When a call needs approval, in a word for a table."""
        return "always" if self.always or self.unconditional else "sometimes"

    @property
    def unconditional(self) -> bool:
        """Whether some rule fits every call."""
        return any(clause.condition is None for clause in self.clauses)


Plan = Mapping[str, Demand]
"""What is demanded, by the name of a tool; a tool that needs nobody is not in it."""


def plan_of(settings: ApprovalsSettings, offers: Iterable[Offer]) -> Plan:
    """What is demanded of calls; raises BadCondition."""
    conditions = {rule.when: Condition(rule.when) for rule in settings.rules if rule.when}
    plan: dict[str, Demand] = {}
    for tool in offers:
        if not isinstance(tool, Tool) or fits(settings.auto_approve, tool):
            continue
        clauses = tuple(
            Clause(rule, conditions.get(rule.when))
            for rule in settings.rules
            if fits(rule.tools, tool)
        )
        always = tool.approval or fits(settings.require, tool)
        if always or clauses:
            deciding = [always, *(clause.rule for clause in clauses)]
            digest = hashlib.sha256(msgspec.json.encode(deciding)).hexdigest()
            plan[tool.name] = Demand(always, clauses, settings.timeout_s, digest[:16])
    return plan


def fits(patterns: Iterable[str], tool: Tool) -> bool:
    """Whether one of the patterns means this tool."""
    return any(means(pattern, tool) for pattern in patterns)


def means(pattern: str, tool: Tool) -> bool:
    """Whether a pattern means this tool; only `*` stands for something else than itself."""
    name = tool.name
    if pattern.startswith(PACK):
        pattern, name = pattern.removeprefix(PACK), tool.pack
    literal = pattern.replace("[", "[[]").replace("?", "[?]")
    return fnmatch.fnmatchcase(name, literal)


def satisfies(who: Approver, by: Iterable[tuple[str, ...]]) -> bool:
    """Whether somebody is one of each group; the operator always is."""
    if isinstance(who, Operator):
        return True
    return all(any(_is(who, entry) for entry in group) for group in by)


def _is(who: TenantContext, entry: str) -> bool:
    if entry.startswith(ROLE):
        return entry.removeprefix(ROLE) in who.roles
    issuer, _, subject = entry.removeprefix(SUBJECT).partition(" ")
    return (who.issuer, who.subject) == (issuer, subject)
