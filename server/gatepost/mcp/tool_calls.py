"""Answer `tools/call`: pass the request to the runner and encode the outcome."""

from gatepost.mcp.jsonrpc import INVALID_PARAMS, JsonRpcError
from gatepost.mcp.request import arguments_in, name_in
from gatepost.mcp.responses import MethodResult, UncommittedResult, call_result, unrecorded
from gatepost.mcp.revisions import MODERN
from gatepost.mcp.server import McpRequest, McpServer
from gatepost.mcp.tasks import methods
from gatepost.storage.tasks import TaskRecord
from gatepost.tools.api import Call, Failure, Outcome
from gatepost.tools.client import MissingCapability
from gatepost.tools.registry import UnknownTool
from gatepost.tools.runner import NO_RECORD, UNRECORDED_EFFECT


async def call_tool(server: McpServer, ask: McpRequest) -> MethodResult:
    """Answer `tools/call`; the endpoint answers an AuthError from the runner."""
    params = ask.params
    try:
        name, arguments = name_in(params), arguments_in(params)
    except JsonRpcError as refusal:
        raise await server.counted(ask.caller, refusal) from None
    call = Call(
        caller=ask.caller,
        name=name,
        arguments=arguments,
        request_id=ask.request_id,
        client=ask.client,
        retry=ask.retry,
        correlation=ask.correlation,
        peer=ask.peer,
    )
    commit = NO_RECORD
    try:
        if call.name in server.lengthy:
            found = await methods.run(server, ask, call)
            if isinstance(found, TaskRecord):
                return methods.created(server, found)
            outcome = found
        else:
            outcome, commit = await server.runner.run_uncommitted(call)
    except UnknownTool as unknown:
        raise unknown_tool(unknown.name) from None
    except MissingCapability as missing:
        if ask.revision == MODERN:
            raise
        # Before 2026-07-28 there is no error code for it, and the agent can tell its user.
        outcome = Outcome(failure=Failure("denied", f"This tool {missing}."))
    if outcome is UNRECORDED_EFFECT:
        raise unrecorded(ask.request_id)
    body = call_result(outcome, ask.revision, server.tail)
    return body if commit.kept else UncommittedResult(body, commit)


def unknown_tool(name: str) -> JsonRpcError:
    """Return the refusal of a tool; it is the same if the caller cannot reach the tool."""
    return JsonRpcError(INVALID_PARAMS, f"Unknown tool: {name[:64]}")
