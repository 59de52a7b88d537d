"""Which calls need approval: policies of tools, and CEL conditions of a bounded cost."""

import fnmatch
import hashlib
import importlib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import asdict

from gatepost.config.approvals import ApprovalRule, ApprovalsSettings
from gatepost.policy.approvals.request import Approver, DisplayedParty, Operator
from gatepost.policy.idempotency.stage import only_reads
from gatepost.tools.api import Offer, Tool
from gatepost.tools.json_shape import decoded
from gatepost_authz.caller import TenantContext

LIBRARY = "cel"
"""The extra `cel`, imported by name: it is needed only if the configuration has a condition."""
MOST_CHARACTERS = 2_000
MOST_BYTES = 65_536
"""Maximum size of arguments that conditions evaluate."""
MOST_VALUES, MOST_LOOPED_BYTES = 500, 8_192
"""The same for a condition with a loop, which may try a pattern on each value."""
MOST_LOOPS, MOST_SUMS = 3, 20
"""In one condition: `map(x, x + x)` doubles its input, and a chain of them would fill memory."""
MOST_PATTERN, MOST_REPEATED = 200, 100
"""Characters of a pattern, and the product of its repetitions (`{3,20}`): its states."""
WRAPS = b"9223372036854775808"
"""The library negates the least integer to itself, so `-arguments.amount > 1` is false for it."""

NOT_EVALUATED = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What the library raises if an expression has no value for these arguments."""

_ASIDE = re.compile(
    r"""//[^\n]*"""
    r"""|[bB]?[rR][bB]?(?:'''.*?'''|\"{3}.*?\"{3}|'[^'\n]*'|"[^"\n]*")"""
    r"""|'''(?:\\.|[^\\])*?'''|\"{3}(?:\\.|[^\\])*?\"{3}"""
    r"""|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*\"""",
    re.S,
)
"""A comment or a string; in a raw string (`r'…'`) a backslash is literal."""
_LOOP = re.compile(r"\.\s*(all|exists|exists_one|existsOne|filter|map)\s*\(")
_MATCHES = "matches"
_PATTERN = re.compile(r"\.\s*matches\s*\(\s*\x00(\d+)\x00\s*\)")
_BRACES, _DIGITS = re.compile(r"\{[^}]*"), re.compile(r"\d{1,9}")
_DISGUISED = re.compile(r"\\[xXuU0-9]|\(\?[a-zA-Z-]*x")


class BadCondition(Exception):
    """A condition that cannot be used; the message says why."""


class NoLibrary(BadCondition):
    """The extra is not installed."""


class ConditionVariables(msgspec.Struct, frozen=True):
    """The variables of a condition for one call."""

    arguments: bytes
    """Raw JSON, as the call sent it."""
    caller: Mapping[str, Any]
    tool: Mapping[str, Any]


class Condition:
    """
    A compiled CEL expression; BadCondition if it is invalid.

    Callers choose the arguments, and evaluation blocks the process. So loops must not be nested,
    and arguments that are too large are not evaluated.
    """

    __slots__ = ("_loops", "_program", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > MOST_CHARACTERS:
            raise BadCondition(f"it is longer than {MOST_CHARACTERS} characters")
        bare = _ASIDE.sub(" ", text)
        self._loops = bool(_LOOP.search(bare)) or _MATCHES in bare
        if (why := _costly(bare) or _hard(text)) is not None:
            raise BadCondition(why)
        try:
            library = importlib.import_module(LIBRARY)
        except ModuleNotFoundError:
            raise NoLibrary("conditions need the extra cel: pip install 'gatepost[cel]'") from None
        try:
            self._program = library.compile(text)
        except ValueError as error:
            raise BadCondition(str(error).partition("\n")[0]) from None

    def holds(self, subject: ConditionVariables) -> bool | None:
        """Return whether the condition is true for the call; None if it cannot be evaluated."""
        arguments = subject.arguments
        if len(arguments) > MOST_BYTES or WRAPS in arguments:
            return None
        if self._loops and (
            len(arguments) > MOST_LOOPED_BYTES or arguments.count(b",") > MOST_VALUES
        ):
            return None
        try:
            value = self._program.execute(
                {
                    "arguments": decoded(arguments),
                    "caller": subject.caller,
                    "tool": subject.tool,
                }
            )
        except NOT_EVALUATED:
            return None
        return value if isinstance(value, bool) else None


def caller_variables(caller: TenantContext) -> dict[str, Any]:
    """Return the variable `caller` of conditions."""
    return {
        "subject": caller.subject,
        "issuer": caller.issuer,
        "kind": caller.subject_kind,
        "client_id": caller.client_id or "",
        "tenant": caller.tenant_id,
        "scopes": sorted(caller.scopes),
        "roles": sorted(caller.roles),
    }


def variables_of(
    caller: Mapping[str, Any], tool: Tool, raw: bytes, arguments: Any
) -> ConditionVariables:
    """
    Return the variables for a call; *caller* comes from `caller_variables`.

    *arguments* are the checked arguments, *raw* is what was sent.
    """
    return ConditionVariables(
        raw,
        caller,
        {
            "name": tool.name,
            "pack": tool.pack,
            "reads": only_reads(tool, arguments),
            **asdict(tool.effects),
        },
    )


def _costly(bare: str) -> str | None:
    """Return why it could cost too much, or None; *bare* has no strings and comments."""
    if any(mark in bare for mark in ("'", '"', "//")):
        return "a text in it does not end as it began"
    loops = _LOOP.findall(bare)
    if _nested(bare):
        return "a loop (all, exists, exists_one, filter, map) is within another"
    if len(loops) > MOST_LOOPS or loops.count("map") > 1:
        return f"it has more than {MOST_LOOPS} loops, or more than one of them is `map`"
    if loops and bare.count("+") > MOST_SUMS:
        return f"it has a loop, and adds more than {MOST_SUMS} times"
    return None


def _hard(text: str) -> str | None:
    """Return why a pattern could cost too much, or None; patterns must be literals."""
    patterns: list[str] = []

    def numbered(found: re.Match[str]) -> str:
        if found[0].startswith("//"):
            return " "
        patterns.append(found[0])
        return f"\0{len(patterns) - 1}\0"

    shape = _ASIDE.sub(numbered, text.replace("\0", " "))
    written = _PATTERN.findall(shape)
    if len(written) != shape.count(_MATCHES):
        return "a pattern of `matches` is not written out as one text"
    for pattern in (patterns[int(at)] for at in written):
        repeated = [
            max(map(int, _DIGITS.findall(one)), default=1) for one in _BRACES.findall(pattern)
        ]
        if len(pattern) > MOST_PATTERN or math.prod(repeated) > MOST_REPEATED:
            return "a pattern of `matches` is too long or repeats too often"
        if _DISGUISED.search(pattern):
            return "a pattern of `matches` writes characters as numbers, or has the flag x"
    return None


def _nested(bare: str) -> bool:
    """Return whether a loop contains another loop; *bare* has no strings."""
    for loop in _LOOP.finditer(bare):
        depth, at = 1, loop.end()
        while at < len(bare) and depth:
            depth += {"(": 1, ")": -1}.get(bare[at], 0)
            at += 1
        if _LOOP.search(bare, loop.end(), at):
            return True
    return False


PACK = "pack:"
ROLE, SUBJECT = "role:", "subject:"
DEFAULT_APPROVERS = ("role:approver",)
"""The approvers if no rule names any."""


class ApprovalNeed(msgspec.Struct, frozen=True):
    """The approval that one call needs before it runs."""

    approvals: int
    by: tuple[tuple[str, ...], ...]
    """The approver must match one entry of each group; empty: no rule names approvers."""
    reason: str
    timeout_s: float
    machines_wait: bool = True
    """Whether the default approvers also decide about calls of machines."""

    def of(self, caller: DisplayedParty) -> tuple[tuple[str, ...], ...]:
        """Return the approvers for that caller; empty if nobody may approve its calls."""
        return self.by or _default_approvers(caller, machines_wait=self.machines_wait)

    def within(self, caller: DisplayedParty, needed: int, by: Iterable[tuple[str, ...]]) -> bool:
        """Return whether *needed* people who match every group of *by* are enough."""
        return self.approvals <= needed and set(self.of(caller)) <= set(by)


def _default_approvers(
    caller: DisplayedParty, *, machines_wait: bool
) -> tuple[tuple[str, ...], ...]:
    # The person that a machine acts for could be the approver. The token's name for them (`act`)
    # may differ from the one that they sign in with, so the server could not tell.
    usual = caller.kind == "user" or (machines_wait and caller.actor is None)
    return (DEFAULT_APPROVERS,) if usual else ()


class PolicyRule(msgspec.Struct, frozen=True):
    """One rule that matches a tool."""

    rule: ApprovalRule
    condition: Condition | None

    def counts(self, subject: ConditionVariables) -> bool:
        """Return whether the rule matches the call; True if that cannot be evaluated."""
        return self.condition is None or self.condition.holds(subject) is not False


class ApprovalPolicy(msgspec.Struct, frozen=True):
    """The approval policy of one tool."""

    always: bool
    """Every call needs approval: by declaration, by `approvals.require`, or as destructive."""
    clauses: tuple[PolicyRule, ...]
    timeout_s: float
    version: str
    """A digest that changes when the policy changes."""
    machines_wait: bool = True
    """Whether the default approvers also decide about calls of machines."""
    writes: bool = False
    """Calls that do not only read need approval: the tool is destructive but has a reading form."""

    def need(self, subject: ConditionVariables) -> ApprovalNeed | None:
        """Return the approval that the call needs, or None."""
        rules = [clause.rule for clause in self.clauses if clause.counts(subject)]
        asked = self.always or (self.writes and not subject.tool["reads"])
        if not rules and not asked:
            return None
        limits = [rule.timeout_s for rule in rules if rule.timeout_s is not None]
        return ApprovalNeed(
            approvals=max([1, *(rule.approvals for rule in rules)]),
            by=tuple(dict.fromkeys(rule.by for rule in rules if rule.by)),
            reason=" ".join(dict.fromkeys(rule.reason for rule in rules if rule.reason)),
            timeout_s=min(limits) if limits else self.timeout_s,
            machines_wait=self.machines_wait,
        )

    def has_no_approver(self, caller: DisplayedParty) -> bool:
        """Return whether no person may approve calls of that caller."""
        named = any(clause.rule.by for clause in self.clauses)
        return not named and not _default_approvers(caller, machines_wait=self.machines_wait)

    def frequency(self) -> str:
        """Return `always` or `sometimes`: when calls need approval."""
        return "always" if self.always or self.unconditional else "sometimes"

    @property
    def unconditional(self) -> bool:
        """Return whether a rule matches every call."""
        return any(clause.condition is None for clause in self.clauses)


Plan = Mapping[str, ApprovalPolicy]
"""Policies by the name of the tool; tools that never need approval are absent."""


def plan_of(settings: ApprovalsSettings, offers: Iterable[Offer]) -> Plan:
    """Return the policies of all tools; raises BadCondition."""
    machines_wait = settings.machines == "wait"
    conditions = {rule.when: Condition(rule.when) for rule in settings.rules if rule.when}
    plan: dict[str, ApprovalPolicy] = {}
    for tool in offers:
        if not isinstance(tool, Tool) or matches_any(settings.auto_approve, tool):
            continue
        clauses = tuple(
            PolicyRule(rule, conditions.get(rule.when))
            for rule in settings.rules
            if matches_any(rule.tools, tool)
        )
        always = tool.approval or matches_any(settings.require, tool)
        writes = not always and asks_as_destructive(settings, tool)
        if writes and tool.read_only_form is None:
            always, writes = True, False
        if always or writes or clauses:
            deciding: list[Any] = [always, *(clause.rule for clause in clauses)]
            if writes:
                deciding.append("writes")
            if not machines_wait:
                deciding.append(settings.machines)
            digest = hashlib.sha256(msgspec.json.encode(deciding)).hexdigest()
            plan[tool.name] = ApprovalPolicy(
                always, clauses, settings.timeout_s, digest[:16], machines_wait, writes
            )
    return plan


def asks_as_destructive(settings: ApprovalsSettings, tool: Tool) -> bool:
    """Return whether calls of the tool need approval because it is marked destructive."""
    return settings.destructive != "run" and tool.effects.destructive


def matches_any(patterns: Iterable[str], tool: Tool) -> bool:
    """Return whether one of the patterns matches this tool."""
    return any(matches(pattern, tool) for pattern in patterns)


def matches(pattern: str, tool: Tool) -> bool:
    """Return whether a pattern matches this tool; only `*` is a wildcard."""
    name = tool.name
    if pattern.startswith(PACK):
        pattern, name = pattern.removeprefix(PACK), tool.pack
    literal = pattern.replace("[", "[[]").replace("?", "[?]")
    return fnmatch.fnmatchcase(name, literal)


def satisfies(who: Approver, by: Iterable[tuple[str, ...]]) -> bool:
    """Return whether an approver matches one entry of each group; an operator always does."""
    if isinstance(who, Operator):
        return True
    return all(any(_is(who, entry) for entry in group) for group in by)


def _is(who: TenantContext, entry: str) -> bool:
    if entry.startswith(ROLE):
        return entry.removeprefix(ROLE) in who.roles
    issuer, _, subject = entry.removeprefix(SUBJECT).partition(" ")
    return (who.issuer, who.subject) == (issuer, subject)
