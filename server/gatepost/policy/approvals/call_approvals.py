"""The approvals that are stored for a call, and a new request for one."""

import hashlib
import secrets

import msgspec
from msgspec.structs import replace

from gatepost.config.approvals import ApprovalsSettings
from gatepost.policy.approvals.approval_request import (
    ApprovalRequest,
    ToolFacts,
    definition_of,
    party_of,
)
from gatepost.policy.approvals.policies import ApprovalNeed
from gatepost.policy.approvals.stored_request import shown_arguments
from gatepost.storage.approvals import ApprovalMatches, ApprovalQuery, WaitingCount
from gatepost.tools.calls.redaction import Redaction
from gatepost.tools.offers.offer import Call, Tool, ToolFailure

BUSY_S = 30
"""When a caller for which too many calls wait may call again, in seconds."""
OF_CALLER = (
    "{count} of your calls already wait for approval. Wait until they are decided, then call again."
)
OF_TENANT = "Too many calls wait for approval at the moment. Call again later."


class CallApprovals(msgspec.Struct, frozen=True, kw_only=True):
    """The approvals that were stored for a call when it was made."""

    digest: bytes
    """The digest of the call's arguments."""
    binding: bytes
    """The binding of its request (`binding_of`)."""
    policy: str
    """The version of the tool's policy."""
    matches: ApprovalMatches


def binding_of(call: Call, tool: Tool, digest: bytes, policy: str) -> bytes:
    """Return a digest of caller, client, actor, tool with its definition, arguments and policy."""
    caller = call.caller
    # As JSON, so that no choice of ids makes two different calls the same.
    identity = (*caller.principal_key, caller.client_id, caller.actor)
    definition = definition_of(tool)
    # Without one, the digest is the one of earlier releases.
    named = (*identity, tool.name, digest.hex(), policy, *([definition] if definition else []))
    return hashlib.sha256(msgspec.json.encode(named)).digest()


def query_of(call: Call, tool: Tool, binding: bytes, now: float) -> ApprovalQuery:
    """Return the query for the approvals of a call; *now* is in seconds since the epoch."""
    caller = call.caller
    return ApprovalQuery(
        binding=binding,
        tool=tool.name,
        issuer=caller.issuer,
        subject=caller.subject,
        subject_kind=caller.subject_kind,
        now=now,
    )


def request_of(
    call: Call, tool: Tool, need: ApprovalNeed, policy: str, redaction: Redaction, now: float
) -> ApprovalRequest:
    """Return a new request; ToolFailure if a person could not judge the call."""
    caller = call.caller
    party = party_of(caller)
    client_name = redaction.clean(caller.tenant_id, call.client.client_name)
    return ApprovalRequest(
        id=secrets.token_hex(12),
        tenant=caller.tenant_id,
        state="waiting",
        tool=tool.name,
        title=tool.title or "",
        caller=replace(party, client_name=client_name),
        arguments=shown_arguments(redaction, caller.tenant_id, tool, call.arguments),
        created_at=now,
        until=now + need.timeout_s,
        reason=need.reason,
        needed=need.approvals,
        by=need.approvers_for(party),
        policy=policy,
        facts=None if tool.origin is None else ToolFacts.from_tool(tool),
        request_id=call.request_id,
        correlation=call.correlation,
        read_only=tool.effects.read_only,
        destructive=tool.effects.destructive,
    )


def check_waiting(waiting: WaitingCount, settings: ApprovalsSettings) -> None:
    """Raise ToolFailure if as many calls of the caller or the tenant wait as may."""
    if waiting.of_caller >= settings.max_waiting_per_caller:
        message = OF_CALLER.format(count=waiting.of_caller)
        raise ToolFailure("rate_limit", message, retry_after=BUSY_S)
    if waiting.of_tenant >= settings.max_waiting_per_tenant:
        raise ToolFailure("rate_limit", OF_TENANT, retry_after=BUSY_S)
