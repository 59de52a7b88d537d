"""The steps of a call, the same for every protocol that brings one."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

import structlog

from gatepost.tools.api import Call, CallContext, Failure, Outcome, Tool, ToolFailure
from gatepost.tools.attend import DeadlinePassed, Within
from gatepost.tools.client import MissingCapability, ProtocolError, all_needed
from gatepost.tools.fit import fit
from gatepost.tools.registry import Registry
from gatepost_authz.errors import AuthError

log = structlog.get_logger("gatepost.runner")

Next = Callable[[Call, Tool, Any], Awaitable[Outcome]]

GRACE_S = 45.0
"""How long a call may outlive its caller's token: longer than most calls take, below a minute."""

BEYOND = (Exception, BaseExceptionGroup, SystemExit)
"""
What other people's code may end in. A library that gives up with `sys.exit` on a tool's behalf must
not end the server.
"""


class TokenOver(DeadlinePassed):
    """The caller's token expired while the tool ran."""


class WhileAllowed(Within[Outcome]):
    """Awaits a tool that could run for longer than its caller's token lasts."""

    __slots__ = ()

    stopped = TokenOver


class Stage(Protocol):
    """
    Something that happens around a checked call: limits, approvals, the record of it.

    It answers ``await proceed(call, tool, arguments)``, or an Outcome of its own, or raises
    ToolFailure. Composed once, when the runner is built.
    """

    async def __call__(self, call: Call, tool: Tool, arguments: Any, proceed: Next) -> Outcome:
        """Take this stage's part in the call."""


class Runner:
    """
    The only way to a tool: find → require → check → stages → invoke → fit.

    Scopes come before arguments, so that a caller learns nothing about a tool it may not use.
    """

    grace_s = GRACE_S

    def __init__(
        self,
        registry: Registry,
        *,
        context_for: Callable[[Call], CallContext],
        stages: Sequence[Stage] = (),
        timeout_s: float = 30.0,
        max_result_bytes: int = 4_000_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.registry = registry
        self.context_for = context_for
        self.timeout_s = timeout_s
        self.max_result_bytes = max_result_bytes
        self.clock = clock
        self._perform: Next = self._invoke
        for stage in reversed(stages):
            self._perform = partial(_through, stage, self._perform)

    async def run(self, call: Call) -> Outcome:
        """
        Do what *call* asks, or say in its Outcome why not.

        Raises UnknownTool, InsufficientScope or InsufficientAuthentication where more permissions
        or a new sign-in would help, MissingCapability, ProtocolError and InputNeeded; these are
        for the protocol to answer.
        """
        tool = self.registry.find(call.caller, call.tool)
        call.caller.require(tool.scopes)
        if tool.acr_values or tool.max_age_s is not None:
            call.caller.require_authentication(tool.acr_values, tool.max_age_s, now=self.clock())
        try:
            outcome = await self._perform(call, tool, tool.check(call.arguments))
        except ToolFailure as raised:
            outcome = Outcome(failure=raised.failure)
        except (AuthError, MissingCapability, ProtocolError):
            raise
        except TokenOver:
            message = "The access token expired while the tool ran. Call again with a fresh one."
            outcome = Outcome(failure=Failure("timeout", message))
        except DeadlinePassed:
            outcome = _timed_out(tool.timeout_s or self.timeout_s)
        except asyncio.CancelledError as raised:
            if _is_ours():
                raise
            # The tool awaited something that somebody else cancelled: its fault, not the client's.
            outcome = self._unforeseen(call, raised)
        except BEYOND as raised:
            outcome = self._unforeseen(call, raised)
        return fit(outcome, tool, self.max_result_bytes)

    def _invoke(self, call: Call, tool: Tool, arguments: Any) -> Awaitable[Outcome]:
        # The clock runs while the tool runs, not while a stage waits for a person.
        limit = tool.timeout_s or self.timeout_s
        work = tool.invoke(self.context_for(call), arguments)
        # Whoever lost the right to call must not keep what is said on an open stream; a token
        # within its leeway counts as good until now.
        allowed = max(call.caller.expires_at - self.clock(), 0.0) + self.grace_s
        return Within(limit, work) if limit <= allowed else WhileAllowed(allowed, work)

    def _unforeseen(self, call: Call, raised: BaseException) -> Outcome:
        if isinstance(raised, BaseExceptionGroup) and (needed := all_needed(raised)):
            # The tool asks in tasks of its own, all at once.
            raise needed from None
        log.exception("tool_failed", request_id=call.request_id, tool=call.tool)
        message = f"The tool failed unexpectedly. Reference: {call.request_id}"
        return Outcome(failure=Failure("internal", message))


async def _through(stage: Stage, proceed: Next, call: Call, tool: Tool, arguments: Any) -> Outcome:
    return await stage(call, tool, arguments, proceed)


def _timed_out(limit_s: float) -> Outcome:
    message = f"The tool did not finish within {limit_s:g} seconds."
    return Outcome(failure=Failure("timeout", message))


def _is_ours() -> bool:
    """Whether the running task itself was asked to stop."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
