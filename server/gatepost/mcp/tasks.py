"""The tasks extension: calls that are answered with a task, and what clients do with it."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from gatepost.mcp import questions
from gatepost.mcp.era import MODERN
from gatepost.mcp.errand import Errand
from gatepost.mcp.jsonrpc import INVALID_PARAMS, MISSING_CAPABILITY, Refused
from gatepost.mcp.keeper import perform
from gatepost.mcp.params import TASKS, Params
from gatepost.mcp.roundtrips import responses_of
from gatepost.mcp.server import Ask, Server
from gatepost.stores.api import TERMINAL, TaskRecord
from gatepost.tools.api import Call, Failure, Outcome, Tool
from gatepost.tools.asking import Misanswered, check_answer
from gatepost.tools.attend import HUNG_UP, DeadlinePassed, Within
from gatepost.tools.client import Capabilities, InputRequest
from gatepost.tools.runner import EXPIRED

_encode = msgspec.json.encode
_replace = msgspec.structs.replace
_extensions = msgspec.json.Decoder(dict[str, Raw]).decode

REQUIRED: Capabilities = {"extensions": {TASKS: {}}}
UNKNOWN = Refused(INVALID_PARAMS, "Unknown task")
"""The same for a task that is somebody else's, and for one whose time is over."""
UNDECLARED = Refused(
    MISSING_CAPABILITY,
    f"The client did not declare the extension {TASKS}",
    data={"requiredCapabilities": REQUIRED},
)
ONLY_TASKS = "The tool takes so long that only clients of tasks (MCP 2026-07-28) can call it."
PATIENCE_S = 1.0
"""How long a client waits for a call that has not come to its tool."""


async def run(server: Server, ask: Ask, call: Call) -> Outcome | TaskRecord:
    """
    Run the call of a tool that may become a task: its outcome, or the task it has become.

    Raises what `Runner.run` raises, and Refused or StoreUnavailable when the task cannot be kept.
    """
    tool = server.registry.find(call.caller, call.name)
    if not (ask.revision == MODERN and declared(ask.params)):
        if tool.task_support != "required":
            return await server.runner.run(call)
        if ask.revision == MODERN:
            raise UNDECLARED
        # Before 2026-07-28 there is no error for it, and a model can tell its user.
        return Outcome(failure=Failure("denied", ONLY_TASKS))
    errand = Errand(ask.client)
    detachable = _replace(call, client=errand, lasting=True, holder=None)
    work = asyncio.create_task(perform(server.runner, detachable))
    work.add_done_callback(lambda _: errand.turn.set())
    accepted, why = False, ()
    try:
        if not await _turned(errand, server.runner.allowed_s(call.caller), tool):
            return EXPIRED
        if work.done():
            return work.result()
        record = await server.tasks.accept(call, tool, errand, work)
        accepted = True
        return record
    except asyncio.CancelledError as cancelled:
        why = cancelled.args
        raise
    finally:
        if not accepted:
            # One that has not come to its tool ends as if it had never been called: a retry key
            # must not be spent on it. What detaches by itself may have done something before.
            if tool.detaches or not errand.refuse():
                work.cancel(*why)
            if tool.detaches and HUNG_UP in why:
                # What goes on for its retry key must not wait for a task that never comes.
                errand.go_on()
            await _over(work)


async def _turned(errand: Errand, allowed_s: float, tool: Tool) -> bool:
    """
    Wait until the call is over or should become a task; False when its caller's time is over.

    What keeps a call from its tool, like an earlier one with the same retry key, may take its time:
    so does then the task. A tool that does not want tasks is one only if somebody has to decide.
    """
    waits = tool.detaches or tool.task_support == "forbidden"
    patience_s = allowed_s if waits else min(allowed_s, PATIENCE_S)
    with contextlib.suppress(DeadlinePassed):
        await Within(patience_s, errand.turn.wait())
        return True
    return patience_s < allowed_s


async def _over(work: asyncio.Task[Outcome]) -> None:
    """Wait for the end of work that is stopped; what comes of it is nobody's."""
    if not work.done():
        await asyncio.wait({work})
    if not work.cancelled():
        work.exception()


def created(server: Server, record: TaskRecord) -> bytes:
    """The result of a call that has become a task (K-05)."""
    shown = {"resultType": "task", **server.tasks.ledger.handle(record)}
    return _encode(shown)[:-1] + server.tail + b"}"


async def get_task(server: Server, ask: Ask) -> bytes:
    """`tasks/get`."""
    record = await _task(server, ask)
    shown = {"resultType": "complete", **server.tasks.ledger.shown(record)}
    return _encode(shown)[:-1] + server.tail + b"}"


async def update_task(server: Server, ask: Ask) -> bytes:
    """
    `tasks/update`: takes the answers to questions that wait, and ignores all others (K-12).

    One answer that does not fit its question refuses the request, and none of it is taken.
    """
    found = await _task(server, ask)
    given = _given(ask.params)

    def take(record: TaskRecord) -> TaskRecord:
        taken = {}
        for key, request in questions.waiting(record).items():
            if key in given:
                taken[key] = _checked(key, request, given[key])
        return questions.answer(record, taken)

    if found.status not in TERMINAL:
        await server.tasks.ledger.change(ask.caller.tenant_id, found.id, take)
    return _done(server)


async def cancel_task(server: Server, ask: Ask) -> bytes:
    """`tasks/cancel`: says so to the server that runs it; the task may end otherwise (K-13)."""
    found = await _task(server, ask)
    if found.status not in TERMINAL:
        await server.tasks.ledger.change(ask.caller.tenant_id, found.id, _cancelled)
    return _done(server)


def _cancelled(record: TaskRecord) -> TaskRecord:
    return record if record.cancelled else _replace(record, cancelled=True)


def _done(server: Server) -> bytes:
    return b'{"resultType":"complete"' + server.tail + b"}"


async def _task(server: Server, ask: Ask) -> TaskRecord:
    """The task a request names, if it is the caller's; raises Refused and InsufficientScope."""
    if not declared(ask.params):
        raise UNDECLARED
    if ask.params.task_id is UNSET:
        raise Refused(INVALID_PARAMS, "params.taskId is required")
    record = await server.tasks.find(ask.caller, ask.params.task_id)
    if record is None:
        raise UNKNOWN
    return record


def _checked(key: str, request: InputRequest, given: Raw) -> Mapping[str, Any]:
    try:
        return check_answer(request, msgspec.json.decode(given))
    except Misanswered as mistake:
        # The key is one of ours, so it may be shown.
        raise Refused(INVALID_PARAMS, f"params.inputResponses.{key}: {mistake}") from None


def _given(params: Params) -> dict[str, Raw]:
    if params.input_responses is UNSET:
        raise Refused(INVALID_PARAMS, "params.inputResponses is required")
    return responses_of(params.input_responses)


def declared(params: Params) -> bool:
    """Whether this very request declares the extension (K-02, X-02)."""
    capabilities = UNSET if params.meta is UNSET else params.meta.capabilities
    if capabilities is UNSET or "extensions" not in capabilities:
        return False
    try:
        settings = _extensions(capabilities["extensions"]).get(TASKS)
    except msgspec.DecodeError:
        return False
    return settings is not None and bytes(settings)[:1] == b"{"
