"""Approval requests, decisions and grants, as approvers see them."""

import hashlib
import json
from collections.abc import Callable
from typing import Literal

import msgspec

from gatepost.storage.approvals import State
from gatepost.tools.offers.offer import Call, Tool, ToolFailure
from gatepost_authz.caller import SubjectKind, TenantContext
from gatepost_authz.protected_resource import TENANT, Resource, SiblingPaths
from gatepost_authz.strict_json import StrictJsonError, members

RequestKind = Literal["call", "script"]
ApprovalVerdict = Literal["approved", "rejected"]
Use = Literal["", "running", "unknown"]

MAX_ARGUMENTS = 180_000
"""Maximum size of arguments for approval, in bytes; encryption adds a third."""


class Undecidable(Exception):
    """A decision is not possible; the message is a sentence for the approver."""


class Operator(msgspec.Struct, frozen=True):
    """The user of the command line on the server, by the name of their system account."""

    name: str


class SignedInApprover(TenantContext, frozen=True, kw_only=True, gc=False):
    """A signed-in approver with their network address, which is only recorded."""

    peer: str = ""


SCRIPT_PREFIX = "script:"
"""Prefix of the id of a request for a script; the digest of the script follows."""

Approver = TenantContext | Operator
"""A signed-in person (`ApprovalService` checks their roles) or the operator."""


class DisplayedParty(msgspec.Struct, frozen=True, kw_only=True):
    """A person or machine as a page shows them; names decide nothing."""

    subject: str
    """The stable id; an operator's own name."""
    issuer: str = ""
    """Empty for an operator."""
    kind: SubjectKind | Literal["operator"] = "user"
    name: str = ""
    """The display name from their token, or empty."""
    client_id: str | None = None
    actor: str | None = None
    """The acting party, as the token says (``act``, RFC 8693 section 4.1)."""
    issued_at: int | None = None
    """When that token was issued; None if it did not say."""
    client_name: str = ""
    """The name that the client gives itself, without secrets; it proves nothing."""

    @property
    def display_name(self) -> str:
        """Return the display name, or the id if there is none."""
        return self.name or self.subject


ERASED = DisplayedParty(subject="", name="erased")
"""Takes the place of a person whose data was erased."""


class ApprovalDecision(msgspec.Struct, frozen=True, kw_only=True):
    """One person's decision."""

    by: DisplayedParty
    verdict: ApprovalVerdict
    at: float
    """Seconds since the epoch."""
    reason: str = ""
    edited: bool = False
    """Whether they changed the arguments."""


class ToolFacts(msgspec.Struct, frozen=True, kw_only=True):
    """
    The properties of a tool that decide its approval policy, and the definition that an approval is
    for.
    """

    name: str
    pack: str
    approval: bool
    destructive: bool
    reading_form: bool
    """Whether some of its calls only read."""
    definition: str = ""
    """The digest of the definition, and the upstream's place (`definition_of`)."""
    upstream: str = ""
    """The name of the upstream."""
    upstream_tool: str = ""
    """The tool's own name there."""

    @classmethod
    def from_tool(cls, tool: Tool) -> "ToolFacts":
        """Return what decides the policy of a tool."""
        return cls(
            name=tool.name,
            pack=tool.pack,
            approval=tool.approval,
            destructive=tool.effects.destructive,
            reading_form=tool.read_only_form is not None,
            definition=definition_of(tool),
            upstream="" if tool.origin is None else tool.origin.server,
            upstream_tool="" if tool.origin is None else tool.origin.key,
        )


def definition_of(tool: Tool) -> str:
    """
    Return the digest of the tool's definition at its upstream, and the upstream's place.

    It is empty for a tool of this server.
    """
    return "" if tool.origin is None else f"{tool.origin.digest}@{tool.origin.location}"


def binding_of(call: Call, tool: Tool, digest: bytes, policy: str) -> bytes:
    """Return a digest of caller, client, actor, tool with its definition, arguments and policy."""
    caller = call.caller
    # As JSON, so that no choice of ids makes two different calls the same.
    identity = (*caller.principal_key, caller.client_id, caller.actor)
    definition = definition_of(tool)
    # Without one, the digest is the one of earlier releases.
    named = (*identity, tool.name, digest.hex(), policy, *([definition] if definition else []))
    return hashlib.sha256(msgspec.json.encode(named)).digest()


class ApprovalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """
    A call or a script that waits for approval or was decided.

    It contains no secrets: `arguments` and `edited` are JSON objects (UTF-8) with secrets replaced
    by `[REDACTED:NAME]`. All values are untrusted: escape them. Times are seconds since the epoch.
    """

    id: str
    tenant: str
    kind: RequestKind = "call"
    state: State
    tool: str
    """The name of the tool, or of a script's file."""
    title: str = ""
    """The title of the tool; may be empty."""
    caller: DisplayedParty
    """The caller; for a script, the caller that wanted to run it first."""
    arguments: bytes = b"{}"
    edited: bytes | None = None
    """Edited arguments, which the call runs with instead."""
    created_at: float
    until: float
    """The end of the time to decide; for an approved request, of the time to use it."""
    decided_at: float | None = None
    """When it left the state `waiting`."""
    reason: str = ""
    """Why approval is needed, in the operator's words; may be empty."""
    needed: int = 1
    """The number of people who must approve."""
    by: tuple[tuple[str, ...], ...] = ()
    """The approvers: they match one entry of each group (`role:NAME`, `subject:ISSUER SUBJECT`)."""
    policy: str = ""
    """For a call: the version of the tool's policy; another version needs a new request."""
    facts: ToolFacts | None = None
    """For a call of a tenant's own tool: the tool as it was when the call was made."""
    decisions: tuple[ApprovalDecision, ...] = ()
    """The decisions in their order."""
    request_id: str = ""
    """The request id of the first call."""
    correlation: str | None = None
    read_only: bool = False
    destructive: bool = False
    """The annotations of the tool."""
    use: Use = ""
    """
    The progress of a call that has begun: it is `running`, or its server is gone and its outcome is
    `unknown`. `running` is never stored, and `unknown` only with the state `used`.
    """
    content: str | None = None
    """The whole content of a script."""
    approved_content: str | None = None
    """The content of the approved script of the same name, or None."""

    @property
    def digest(self) -> str:
        """Return a digest of the approved content, by which an approver states what they saw."""
        shown_fields = (self.id, self.edited or self.arguments, self.content)
        return hashlib.sha256(msgspec.msgpack.encode(shown_fields)).hexdigest()[:16]

    @property
    def approvals_given(self) -> int:
        """Return the number of approvals so far."""
        return sum(decision.verdict == "approved" for decision in self.decisions)


class GrantScope(msgspec.Struct, frozen=True, kw_only=True):
    """
    The scope of a grant: further calls of the same caller and tool that need no new approval.

    At least one of `until` and `uses` is set; without `until` the grant ends after a day.
    """

    until: float | None = None
    """Seconds since the epoch."""
    uses: int | None = None
    """The number of calls, without the approved one."""
    when: str | None = None
    """A CEL condition over `arguments`, `caller` and `tool`; None: exactly these arguments."""


class ApprovalGrant(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that were approved in advance."""

    id: str
    tenant: str
    caller: DisplayedParty
    tool: str
    when: str | None = None
    """A CEL condition; None: exactly the arguments of the approved request."""
    arguments: bytes = b"{}"
    """Those arguments, redacted as in `ApprovalRequest`; empty if there is a condition."""
    until: float
    left: int | None = None
    """The number of remaining calls; None: unlimited."""
    created_at: float
    by: DisplayedParty
    request: str
    """The id of the request with which it was given."""


def check_readable(arguments: bytes) -> None:
    """Raise ToolFailure for arguments that an approver could read differently than the tool."""
    if len(arguments) > MAX_ARGUMENTS:
        raise ToolFailure(
            "validation",
            f"A person has to approve this call, and its arguments have {len(arguments)} bytes; "
            f"at most {MAX_ARGUMENTS} can be looked at. Send less at once.",
        )
    try:
        json.loads(arguments, object_pairs_hook=members)
    except StrictJsonError:
        # Some parsers take the first of two equal names, others the last: the approver could see
        # another value than the tool gets.
        message = "The arguments have a name twice; give each one once."
        raise ToolFailure("validation", message) from None
    except (ValueError, RecursionError):
        raise ToolFailure("validation", "The arguments are not JSON that can be shown.") from None


def party_of(approver: Approver) -> DisplayedParty:
    """Return an approver as pages show them."""
    if isinstance(approver, Operator):
        return DisplayedParty(subject=approver.name, kind="operator")
    return DisplayedParty(
        subject=approver.subject,
        issuer=approver.issuer,
        kind=approver.subject_kind,
        name=approver.name,
        client_id=approver.client_id,
        actor=approver.actor,
        issued_at=approver.issued_at,
    )


def reason_sentence(reason: str) -> str:
    """Return a rejection's reason as a sentence that follows another; empty without a reason."""
    return f" Their reason: {reason}" + ("" if reason[-1:] in ".!?" else ".") if reason else ""


PageUrl = Callable[[str, str], str]
"""Maps a tenant and a request's id to the URL of its page."""


def page_of(resource: str) -> PageUrl:
    """Return the URL function for the dashboard of *resource*."""
    where = Resource(resource)
    page_prefix = f"{where.origin}{SiblingPaths(where).base}/dashboard/approvals/"
    # A script's id has a colon, which some software does not accept in a path segment.
    return lambda tenant, request_id: (
        page_prefix.replace(TENANT, tenant) + request_id.replace(":", "-", 1)
    )


def no_page(tenant: str, request_id: str) -> str:
    """Return an empty URL, for servers without a dashboard."""
    return ""
