"""`tools/call`: from a request to the runner's outcome and back."""

from collections.abc import Mapping

from msgspec import UNSET

from gatepost.mcp import tasks
from gatepost.mcp.jsonrpc import INVALID_PARAMS, Refused
from gatepost.mcp.params import Params, arguments_in, name_in
from gatepost.mcp.project import call_result
from gatepost.mcp.server import Ask, Server
from gatepost.stores.api import TaskRecord
from gatepost.tools.api import Call, Failure, Outcome, Retry
from gatepost.tools.client import MissingCapability
from gatepost.tools.registry import UnknownTool
from gatepost.tools.retry import CORRELATION, IDEMPOTENCY, BadKey, correlation_of, retry_of

Marks = tuple[Retry | None, str | None]


async def call_tool(server: Server, ask: Ask) -> bytes:
    """`tools/call`; AuthError from the runner is the endpoint's to answer."""
    params = ask.params
    call = Call(
        caller=ask.caller,
        name=name_in(params),
        arguments=arguments_in(params),
        request_id=ask.request_id,
        client=ask.client,
        retry=ask.retry,
        correlation=ask.correlation,
        holder=ask.holder,
        peer=ask.peer,
    )
    try:
        if call.name in server.lengthy:
            outcome = await tasks.run(server, ask, call)
            if isinstance(outcome, TaskRecord):
                return tasks.created(server, outcome)
        else:
            outcome = await server.runner.run(call)
    except UnknownTool as unknown:
        raise unknown_tool(unknown.name) from None
    except MissingCapability as missing:
        if ask.session is None:
            raise
        # Before 2026-07-28 there is no error for it, and a model can tell its user.
        outcome = Outcome(failure=Failure("denied", f"This tool {missing}."))
    return call_result(outcome, ask.revision, server.tail)


UNMARKED: Marks = (None, None)


def marks_of(headers: Mapping[bytes, bytes], params: Params) -> Marks:
    """
    The retry key of a call, from its headers or its `_meta`, and the caller's own id for what it is
    part of; raises Refused.
    """
    named = None if params.meta is UNSET or params.meta.retry is UNSET else params.meta.retry
    if named is None and IDEMPOTENCY not in headers and CORRELATION not in headers:
        return UNMARKED  # most calls; all that marks cost them
    try:
        return retry_of(headers, named), correlation_of(headers)
    except BadKey as bad:
        raise Refused(INVALID_PARAMS, str(bad), legacy_status=400) from None


def unknown_tool(name: str) -> Refused:
    """The same words for a tool that is not there and one that this caller cannot reach."""
    return Refused(INVALID_PARAMS, f"Unknown tool: {name[:64]}")
