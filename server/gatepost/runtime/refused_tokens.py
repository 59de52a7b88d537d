"""Report refused tokens to the log, the metrics and the dashboard."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context

from starlette.types import Scope

from gatepost.audit.events import AuditEvents
from gatepost.background import TaskSet
from gatepost.http.failed_tokens import FailedTokenLimit, peer_key
from gatepost.http.scope import REQUEST_ID
from gatepost.storage.errors import StoreUnavailable
from gatepost.telemetry.metric_families import GATE_REASONS
from gatepost.telemetry.metrics import Meter
from gatepost_authz.errors import AuthError, MissingToken
from gatepost_authz.reasons import RULES, UNKNOWN_REASON

WINDOW_S = 60.0
MAX_PER_PEER, MAX_EVENTS = 5, 100
"""Number of logged refusals per window: of one peer, and in total."""

log = logging.getLogger(__name__)


class RefusedTokens:
    """
    Reports every token that is refused, by the gate or at a sign-in to the dashboard.

    The logged reasons of a proved token are also stored in its tenant's record, for the dashboard.
    A report contains nothing that a caller has chosen: an issuer is named as it is configured, or
    once a key has proved it, and a tenant only if its token is proved.
    """

    def __init__(
        self,
        meter: Meter,
        failed_tokens: FailedTokenLimit,
        audit_events: AuditEvents,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._meter, self._failed_tokens, self._audit_events = meter, failed_tokens, audit_events
        self._monotonic = monotonic
        self._window_ends = 0.0
        self._logged: Counter[str] = Counter()
        self._logged_of_all = 0
        self._left_out: Counter[str] = Counter()
        self._noting = TaskSet()

    def by_gate(self, scope: Scope, error: AuthError) -> None:
        """Report a refused request."""
        self._meter.refused(GATE_REASONS.get(type(error).__name__, ""))
        self._report(scope, error, "gate")

    def by_sign_in(self, scope: Scope, error: AuthError) -> None:
        """Report a refused sign-in to the dashboard."""
        self._report(scope, error, "sign_in")

    def _report(self, scope: Scope, error: AuthError, at: str) -> None:
        self._failed_tokens.failed(scope, error)
        if isinstance(error, MissingToken):
            return  # the first request of each client, which has no token
        self._meter.refused_token(error.reason)
        peer = peer_key(scope)
        if self._may_log(peer):
            self._log(scope, error, at, peer)
        else:
            self._leave_out(error.reason)

    def _log(self, scope: Scope, error: AuthError, at: str, peer: str) -> None:
        rule = RULES.get(error.reason, UNKNOWN_REASON)
        details = {
            "claim": error.claim or rule.claim,
            "rule": rule.rule,
            "setting": rule.setting,
            "issuer": error.issuer,
            "tenant": error.tenant,
        }
        log.info(
            "token_refused",
            extra={
                "reason": error.reason,
                **{name: value for name, value in details.items() if value},
                "at": at,
                "peer": peer,
                "request_id": scope.get(REQUEST_ID),
            },
        )
        if error.tenant is not None:
            # In a context of its own, like the timer below.
            noting = self._note(error.tenant, error.reason, scope.get(REQUEST_ID, ""))
            self._noting.start(noting, context=Context())

    async def _note(self, tenant: str, reason: str, request_id: str) -> None:
        # The audit writer logs the outage.
        with suppress(StoreUnavailable):
            await self._audit_events.note(tenant, "token", outcome=reason, request_id=request_id)

    def _may_log(self, peer: str) -> bool:
        now = self._monotonic()
        if now >= self._window_ends:
            self._window_ends = now + WINDOW_S
            self._logged.clear()
            self._logged_of_all = 0
        if self._logged_of_all >= MAX_EVENTS:
            return False
        # Only peers with a logged refusal are remembered, which bounds their number.
        logged = self._logged[peer]
        if logged >= MAX_PER_PEER:
            return False
        self._logged[peer] = logged + 1
        self._logged_of_all += 1
        return True

    def _leave_out(self, reason: str) -> None:
        if not self._left_out:
            # In a new context, so that this request's context is not kept until then.
            loop = asyncio.get_running_loop()
            loop.call_later(WINDOW_S, self.tell_left_out, context=Context())
        self._left_out[reason] += 1

    def tell_left_out(self) -> None:
        """Log how many refusals were not logged, if any."""
        if self._left_out:
            reasons = dict(self._left_out)
            self._left_out.clear()
            count = sum(reasons.values())
            log.warning("token_refusals_left_out", extra={"count": count, "reasons": reasons})
