"""Build the stages of a call, in order."""

from gatepost.config.settings import Config
from gatepost.policy.debug_log import DebugStage
from gatepost.policy.idempotency.execution import RunningCalls
from gatepost.policy.idempotency.stage import IdempotencyStage
from gatepost.policy.limits.denials import DenialCounter
from gatepost.policy.limits.request_limits import AuditedRetries, RetryLimits
from gatepost.policy.limits.stage import DenialHold, LimitStage
from gatepost.policy.revocation.watch import Revocations
from gatepost.policy.tracing import TracingStage
from gatepost.runtime.approvals import ApprovalServices
from gatepost.telemetry.trace import Tracer
from gatepost.tools.calls.redaction import Redaction
from gatepost.tools.calls.stage import Stage


def stages_of(  # noqa: PLR0913  # the composition root hands over each part by name
    config: Config,
    *,
    limits: LimitStage,
    runs: RunningCalls,
    approval_services: ApprovalServices,
    revocations: Revocations,
    denials: DenialCounter,
    redaction: Redaction,
    tracer: Tracer | None,
) -> list[Stage]:
    """Return the stages around each call for this configuration, outermost first."""
    stages: list[Stage] = []
    if tracer is not None:
        stages.append(TracingStage(tracer))
    if config.log.level == "debug":
        stages.append(DebugStage())
    if config.approvals.denials:
        stages.append(DenialHold(revocations))
    if rate := config.limits.requests_per_second:
        stages.append(RetryLimits(limits.counters.buckets, rate=rate, burst=config.limits.burst))
    quotas = config.limits.audit_bytes_per_day or config.limits.tenant.audit_bytes_per_day
    if config.audit.enabled and quotas:
        stages.append(AuditedRetries(limits))
    # Outside the others, so that a retried call uses up no limit and needs no second approval.
    stages.append(
        IdempotencyStage(
            runs,
            timeout_s=config.tools.timeout_s,
            max_result_bytes=config.tools.max_result_bytes,
            kept_s=config.retention.once_s,
            redaction=redaction,
        )
    )
    if not limits.limits_nothing:
        stages.append(limits)
    return stages + approval_services.stages(config, runs, denials.note)
