"""The store of approval requests: it creates them and changes their state."""

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from gatepost.config.approvals import ApprovalsSettings
from gatepost.execution.cpu_thread import in_cpu_thread
from gatepost.policy.approvals.approval_request import (
    ApprovalDecision,
    ApprovalRequest,
    Approver,
    Use,
    binding_of,
)
from gatepost.policy.approvals.grants import CallApprovals
from gatepost.policy.approvals.notifications import ApprovalNotifier, ChangeKind
from gatepost.policy.approvals.policies import (
    ApprovalNeed,
    ApprovalPolicy,
    IsRevoked,
    caller_is_revoked,
    caller_variables,
    revoked_approvals,
    token_claims,
)
from gatepost.policy.approvals.stored_request import (
    ArgumentSealer,
    SealedArguments,
    StoredApproval,
    StoredRequest,
    approval_of,
    key_of_use,
    request_of,
)
from gatepost.policy.approvals.tool_policies import ToolPolicies
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.approvals import ApprovalQuery, ApprovalStore
from gatepost.storage.records import Records
from gatepost.tools.calls.redaction import Redaction
from gatepost.tools.offers.offer import Call, Tool, ToolFailure
from gatepost.tools.schemas.argument_size import SHORT_BYTES

BUSY_S = 30
"""When a caller for which too many calls wait may call again, in seconds."""
OF_CALLER = (
    "{count} of your calls already wait for approval. Wait until they are decided, then call again."
)
OF_TENANT = "Too many calls wait for approval at the moment. Call again later."

T = TypeVar("T")


class RequestStore:
    """
    The approval requests of all tenants, in every state.

    All methods raise StoreUnavailable. A change is durable when its method returns. If several
    attempts are made at the same time, one of them succeeds.
    """

    def __init__(
        self,
        records: Records,
        keyring: KeyRing,
        redaction: Redaction,
        notifier: ApprovalNotifier,
        *,
        is_revoked: IsRevoked,
        clock: Callable[[], float],
    ) -> None:
        self._records, self._redaction = records, redaction
        self.arguments = ArgumentSealer(keyring)
        self._notifier, self.is_revoked, self.clock = notifier, is_revoked, clock

    def apply(self, settings: ApprovalsSettings, policies: ToolPolicies) -> None:
        """Take up the settings and the policies of a configuration."""
        self._settings, self._policies = settings, policies

    async def approvals_of(self, call: Call, tool: Tool, policy: ApprovalPolicy) -> CallApprovals:
        """Return what is stored for a call."""
        digest = await computed(call, self.arguments.digest, tool, call.arguments)
        binding = binding_of(call, tool, digest, policy.version)
        caller = call.caller
        query = ApprovalQuery(
            binding=binding,
            tool=tool.name,
            issuer=caller.issuer,
            subject=caller.subject,
            subject_kind=caller.subject_kind,
            now=self.clock(),
        )
        matches = await self._approvals_of(caller.tenant_id).match(query)
        return CallApprovals(digest=digest, binding=binding, policy=policy.version, matches=matches)

    async def find_or_create(
        self, call: Call, tool: Tool, need: ApprovalNeed, call_approvals: CallApprovals
    ) -> StoredApproval:
        """
        Return the approval request of this call; a retry gets the request of the first call.

        ToolFailure if too many requests wait, or if a person could not judge the call.
        """
        approvals, matches = self._approvals_of(call.caller.tenant_id), call_approvals.matches
        stored, is_read = matches.request, not matches.grants
        new: StoredApproval | None = None
        while True:
            if not is_read:
                stored = await approvals.find(call_approvals.binding)
            if stored is None:
                new = new or await self._new(call, tool, need, call_approvals)
                message = self._notifier.message("requested", new.request)
                stored = await approvals.open(new.record, message)
                if stored is None:
                    await self._notifier.announce("requested", new.request)
                    return new
            if (joined := await self._joined(approval_of(stored))) is not None:
                return joined
            is_read = False

    async def _joined(self, approval: StoredApproval) -> StoredApproval | None:
        """Return the request in its current state, or None if the call has to look again."""
        request = approval.request
        if request.state == "approved" or request.until > self.clock():
            now = await self.current(approval)
            # A request that was just withdrawn with the caller's old token does not apply to the
            # new one, nor does an unused approval that has expired.
            is_gone = now is not None and now is not approval and now.record.binding is None
            return None if is_gone else now
        if request.state == "waiting":
            return await self._end(approval, "expired")
        # The decision is no longer valid.
        await self.change(approval, binding=None)
        return None

    async def _new(
        self, call: Call, tool: Tool, need: ApprovalNeed, call_approvals: CallApprovals
    ) -> StoredApproval:
        """Return a new request; raises ToolFailure as `find_or_create` does."""
        caller, now = call.caller, self.clock()
        waiting = call_approvals.matches.waiting
        if waiting is None:
            owner = caller.issuer, caller.subject, caller.subject_kind
            waiting = await self._approvals_of(caller.tenant_id).count(*owner)
        # Calls that come together may exceed the limits a little.
        if waiting.of_caller >= self._settings.max_waiting_per_caller:
            message = OF_CALLER.format(count=waiting.of_caller)
            raise ToolFailure("rate_limit", message, retry_after=BUSY_S)
        if waiting.of_tenant >= self._settings.max_waiting_per_tenant:
            raise ToolFailure("rate_limit", OF_TENANT, retry_after=BUSY_S)
        policy, digest = call_approvals.policy, call_approvals.digest
        request = await computed(call, request_of, call, tool, need, policy, self._redaction, now)
        details = StoredRequest(request, digest, need.timeout_s, caller_variables(caller))
        sealed = self.arguments.seal(request.id, SealedArguments(call.arguments))
        return StoredApproval.new(details, call_approvals.binding, sealed)

    async def get(self, tenant: str, request_id: str) -> StoredApproval | None:
        """Return a request in its current state."""
        while (record := await self._approvals_of(tenant).get(request_id)) is not None:
            if (approval := await self.current(approval_of(record))) is not None:
                return approval
        return None

    async def current(self, approval: StoredApproval) -> StoredApproval | None:
        """
        Return the request in its current state, or None if it was changed meanwhile.

        It expires if its time is over, loses the approvals of revoked people, and becomes used
        once its call has begun.
        """
        request = approval.request
        if request.state not in {"waiting", "approved"}:
            return approval
        # Checked first: a call that has begun must not be approved or run again.
        if (progress := await self.progress(request)) is not None:
            return await self._used(approval, progress)
        if request.until <= self.clock():
            return await self._end(approval, "expired")
        revoked = revoked_approvals(request, self.is_revoked)
        is_void = revoked and request.state == "approved"
        if is_void or caller_is_revoked(request, self.is_revoked):
            return await self._end(approval, "withdrawn")
        return await self._without_approvals(approval, revoked) if revoked else approval

    async def progress(self, request: ApprovalRequest) -> Use | None:
        """Return the `use` of an approval whose call has begun; None if it has not."""
        if request.state != "approved":
            return None
        run = await self._records.for_tenant(request.tenant).idempotency.get(key_of_use(request.id))
        if run is None or run.outcome is not None:
            return None if run is None else ""
        return "running" if run.leased_until > self.clock() else "unknown"

    async def change(
        self, approval: StoredApproval, *, message_kind: ChangeKind | None = None, **changes: Any
    ) -> StoredApproval | None:
        """Change a request, with a webhook message of that kind; None if it changed meanwhile."""
        changed = approval.changed(self.clock(), keep_s=self._settings.keep_s, **changes)
        message = message_kind and self._notifier.message(message_kind, changed.request)
        is_stored = await self._approvals_of(changed.request.tenant).replace(
            changed.record, message
        )
        return changed.stored() if is_stored else None

    async def decide(self, kind: ChangeKind, changed: StoredApproval, by: Approver | None) -> bool:
        """Record, store and announce a decision; False if the request was changed meanwhile."""
        request = changed.request
        await self._notifier.record(kind, request, by)
        message = self._notifier.message(kind, request)
        if not await self._approvals_of(request.tenant).replace(changed.record, message):
            await self._notifier.record("void", request, by)
            return False
        await self._notifier.announce(kind, request, by, is_recorded=True)
        return True

    async def close(self, approval: StoredApproval) -> None:
        """
        Mark the approval as used; the same call made again needs a new approval.

        This also corrects an approval whose outcome was recorded as unknown meanwhile.
        """
        changes: dict[str, Any] = {"state": "used", "use": "", "binding": None, "sealed": None}
        while True:
            request = approval.request
            is_known = request.state == "used" and not request.use
            is_closed = is_known and approval.record.binding is None
            if is_closed or request.state not in {"approved", "expired", "used"}:
                return
            if (used := await self.change(approval, **changes)) is not None:
                if not is_known:
                    await self._notifier.announce("used", used.request)
                return
            record = await self._approvals_of(request.tenant).get(request.id)
            if record is None:
                return
            approval = approval_of(record)

    def _approvals_of(self, tenant: str) -> ApprovalStore:
        return self._records.for_tenant(tenant).approvals

    async def _used(self, approval: StoredApproval, progress: Use) -> StoredApproval | None:
        now, request = self.clock(), approval.request
        if progress == "running":
            return approval
        if progress == "unknown" and request.until > now:
            opened = self.arguments.open(approval.record)
            if self._policies.may_run_again(request, None if opened is None else opened.approved):
                return approval
        changed = approval.changed(
            now,
            keep_s=self._settings.keep_s,
            state="used",
            use=progress,
            # A retry is told what is known of the first call before a new request is made.
            until=max(request.until, now + approval.details.timeout_s),
            sealed=None,
        )
        is_stored = await self.decide("unknown" if progress else "used", changed, None)
        return changed.stored() if is_stored else None

    async def _without_approvals(
        self, approval: StoredApproval, revoked: tuple[ApprovalDecision, ...]
    ) -> StoredApproval | None:
        """Remove approvals from a waiting request; return None if it was changed meanwhile."""
        request = approval.request
        valid = tuple(decision for decision in request.decisions if decision not in revoked)
        changes: dict[str, Any] = {"decisions": valid}
        if any(decision.edited for decision in revoked):
            opened = self.arguments.open(approval.record)
            if opened is None:
                return await self._end(approval, "withdrawn")
            sealed = self.arguments.seal(request.id, SealedArguments(opened.arguments))
            changes |= {"edited": None, "sealed": sealed}
        changed = await self.change(approval, **changes)
        if changed is not None:
            for decision in revoked:
                by = token_claims(decision.by, request.tenant, decision.at)
                await self._notifier.announce("void", request, by)
        return changed

    async def _end(
        self, approval: StoredApproval, state: Literal["expired", "withdrawn"]
    ) -> StoredApproval | None:
        now, waited = self.clock(), approval.request.state == "waiting"
        changes: dict[str, Any] = {"state": state, "sealed": None, "binding": None}
        changes["decided_at"] = now if waited else approval.request.decided_at
        if waited and state == "expired":
            # The next call with these arguments is told once that the request has expired.
            until = now + approval.details.timeout_s
            changes |= {"binding": approval.record.binding, "until": until}
        changed = await self.change(approval, message_kind=state, **changes)
        if changed is not None:
            await self._notifier.announce(state, changed.request)
        return changed


async def computed(call: Call, function: Callable[..., T], *parameters: Any) -> T:
    """Return what *function* computes: in a thread if the call's arguments may take it long."""
    if len(call.arguments) <= SHORT_BYTES:
        return function(*parameters)
    return await in_cpu_thread(call.caller, function, *parameters)
