"""Turn a task of an upstream into the caller's: poll it here until it ends."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from gatepost.tools.offers.offer import CallContext, ToolFailure
from gatepost.upstreams.calls.call_states import MAX_ROUNDS
from gatepost.upstreams.calls.input_requests import MAX_TOGETHER, Unsupported, clean, input_request
from gatepost.upstreams.calls.round_state import TaskState, UpstreamTarget, encoded
from gatepost.upstreams.connection import ConnectionFailure, UpstreamError, UpstreamResult
from gatepost.upstreams.upstream_server import UpstreamServer

SendRequest = Callable[[str, Mapping[str, Any]], Awaitable[UpstreamResult | UpstreamError]]
"""Sends one more request to the upstream."""

POLL_S, LONGEST_POLL_S = 1.0, 30.0
FAILED_POLLS = 10
"""Polls in a row without an answer after which the task counts as lost."""
CANCEL_S = 5.0
MAX_ID = 512
MAX_STATUS = 500
RUNNING = ("working", "input_required")


def is_task(message: UpstreamResult | UpstreamError) -> bool:
    """Return whether the upstream has made a task of the call."""
    return isinstance(message, UpstreamResult) and message.value.get("resultType") == "task"


def task_in(server: UpstreamServer, message: UpstreamResult | UpstreamError) -> Mapping[str, Any]:
    """Return the task that an upstream has made of a call; it has an id."""
    task: Mapping[str, Any] = {} if isinstance(message, UpstreamError) else message.value
    identity = task.get("taskId")
    if not isinstance(identity, str) or not 0 < len(identity) <= MAX_ID:
        raise ToolFailure("internal", f"{server.name} made a task without an id.")
    return task


def server_removed(server: UpstreamServer) -> ToolFailure:
    """Return the failure of a call whose server is not asked any more while its task runs."""
    sentence = f"{server.name} was removed, disabled or moved while it carried out this call."
    return ToolFailure("internal", f"{sentence} Whether it was carried out is unknown.")


class UpstreamTask:
    """One task of an upstream, polled until it ends; a cancelled call cancels it there too."""

    def __init__(
        self,
        ctx: CallContext,
        server: UpstreamServer,
        target: UpstreamTarget,
        declared: Mapping[str, Any],
        ask: SendRequest,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._ctx, self._server, self._target, self._declared = ctx, server, target, declared
        self._ask, self._sleep = ask, sleep
        # The outer tool of a nested call would run again from its beginning.
        self._is_durable = ctx.depth == 0
        self._polls = 0
        self._status_message: str | None = None
        self._answered: set[str] = set()

    async def outcome(self, task: Mapping[str, Any]) -> UpstreamResult | UpstreamError:
        """
        Return how the task ended; *task* has at least its id.

        If the caller's client takes tasks, the call becomes one, which any replica can continue.
        """
        state = encoded(TaskState(self._target, task["taskId"]))
        is_left = True
        try:
            # If the caller's client does not accept tasks, nothing happens here, and this call
            # waits.
            await self._ctx.client.detach(state=state if self._is_durable and state else b"")
            last_response = await self._poll(task)
            is_left = False
        except ConnectionFailure:
            is_left = False  # the upstream is not told
            raise
        finally:
            if is_left and not self._ctx.client.handed_over:
                await self._cancel(task["taskId"])
        return (
            last_response
            if isinstance(last_response, UpstreamError)
            else self._end(last_response.value)
        )

    async def _cancel(self, identity: str) -> None:
        with suppress(ConnectionFailure, ToolFailure, TimeoutError):
            async with asyncio.timeout(CANCEL_S):
                await self._ask("tasks/cancel", {"taskId": identity})

    async def _poll(self, task: Mapping[str, Any]) -> UpstreamResult | UpstreamError:
        """Return the task in its last state, or the error that took its place."""
        failed_polls, identity = 0, task["taskId"]
        while True:
            await self._report_status(task)
            await self._sleep(_interval_s(task))
            try:
                response = await self._ask("tasks/get", {"taskId": identity})
            except ConnectionFailure as failure:
                failed_polls += 1
                if failed_polls >= FAILED_POLLS:
                    raise ConnectionFailure("outcome_unknown", failure.message) from None
                continue
            if isinstance(response, UpstreamError):
                return response
            failed_polls, task = 0, response.value
            if task.get("taskId", identity) != identity:
                sentence = f"{self._server.name} answered with another task than that of this call."
                raise ToolFailure("internal", sentence)
            status = task.get("status")
            if status == "input_required":
                await self._answer(identity, task)
            elif status not in RUNNING:
                return response

    def _end(self, task: Mapping[str, Any]) -> UpstreamResult | UpstreamError:
        status, result, error = task.get("status"), task.get("result"), task.get("error")
        if status == "completed" and isinstance(result, Mapping):
            return UpstreamResult(result)
        if status == "failed" and isinstance(error, Mapping) and type(error.get("code")) is int:
            return UpstreamError(error["code"], str(error.get("message", "")), error.get("data"))
        if status == "cancelled":
            raise ToolFailure("internal", f"{self._server.name} cancelled the task of this call.")
        raise ToolFailure("internal", f"The task of {self._server.name} ended without a result.")

    async def _report_status(self, task: Mapping[str, Any]) -> None:
        message = task.get("statusMessage")
        if isinstance(message, str) and message != self._status_message:
            self._status_message, self._polls = message, self._polls + 1
            await self._ctx.progress(self._polls, None, clean(message, MAX_STATUS))

    async def _answer(self, identity: str, task: Mapping[str, Any]) -> None:
        """Pass the task's requests to the caller's client, each once."""
        requested = task.get("inputRequests")
        if not isinstance(requested, Mapping):
            return
        fresh = {key: request for key, request in requested.items() if key not in self._answered}
        if not fresh:
            return
        self._answered.update(fresh)
        if len(fresh) > MAX_TOGETHER or len(self._answered) > MAX_ROUNDS * MAX_TOGETHER:
            raise ToolFailure("internal", f"{self._server.name} asked for input too often.")
        try:
            requests = {
                _our_key(key): input_request(
                    self._server,
                    self._declared,
                    str(request["method"]),
                    request.get("params") or {},
                )
                for key, request in fresh.items()
            }
        except (Unsupported, TypeError, KeyError, AttributeError):
            sentence = f"{self._server.name} asked for input that it may not ask for."
            raise ToolFailure("internal", sentence) from None
        responses = await self._ctx.client.request(requests)
        answers = {key: responses[_our_key(key)] for key in fresh}
        await self._ask("tasks/update", {"taskId": identity, "inputResponses": answers})


def _our_key(key: str) -> str:
    """
    Return our key of an upstream's request: the same in every run, another for every request.

    A later run finds the answer to this request by it, and to no other one.
    """
    return f"upstream-{hashlib.sha256(key.encode(errors='surrogatepass')).hexdigest()[:32]}"


def _interval_s(task: Mapping[str, Any]) -> float:
    interval = task.get("pollIntervalMs", task.get("pollInterval"))
    if type(interval) not in (int, float):
        return POLL_S
    return min(max(float(interval) / 1000, POLL_S / 4), LONGEST_POLL_S)
