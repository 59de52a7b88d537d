"""Check the type of a request's body and read it within its size and time limits."""

import asyncio
from collections.abc import Mapping

from starlette.types import Receive

from gatepost.documents.json_shape import excess, too_deep, with_emptied_strings
from gatepost.execution.cpu_thread import in_cpu_thread
from gatepost.http import body
from gatepost.http.body import TooLarge
from gatepost.mcp.jsonrpc import INVALID_REQUEST, JsonRpcError, too_deeply
from gatepost_authz.caller import TenantContext

JSON = b"application/json"


TOO_SLOW = JsonRpcError(
    INVALID_REQUEST, "The body did not arrive in time", status=408, legacy_status=408
)


def check_type(headers: Mapping[bytes, bytes]) -> None:
    """
    Refuse bodies that are not JSON.

    A web page of another origin can post a form or plain text without a preflight request (T-17).
    """
    declared = headers.get(b"content-type", b"")
    if declared != JSON and declared.partition(b";")[0].strip().lower() != JSON:
        raise _refused(415, "Content-Type must be application/json")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise _refused(415, "The body must not be compressed")


async def read_body(caller: TenantContext, receive: Receive, limit: int, within_s: float) -> bytes:
    """
    Read the whole body.

    Raises JsonRpcError if it is too large or too slow, ClientDisconnected if the client leaves
    before its end, TooManyWaiting if too many bodies of the caller arrive at once.
    """
    try:
        # One deadline for all of it: a byte now and then must not keep a request alive.
        async with asyncio.timeout(within_s):
            return await body.read_body_of(caller, receive, limit)
    except TooLarge:
        raise _refused(413, f"The body is larger than {limit} bytes") from None
    except TimeoutError:
        raise TOO_SLOW from None


async def too_much(caller: TenantContext, body: bytes, max_values: int) -> JsonRpcError | None:
    """
    Return a refusal if a long body holds too many values or is nested too deeply.

    The check runs in a thread, so that other requests are served meanwhile; raises TooManyWaiting
    if too many long bodies of the caller are waiting. For a body that is not JSON the answer means
    nothing.
    """
    return await in_cpu_thread(caller, _too_much, body, max_values)


def _too_much(body: bytes, max_values: int) -> JsonRpcError | None:
    shape = with_emptied_strings(body)
    if message := excess(shape, max_values, size=len(body)):
        return _refused(413, message)
    return too_deeply() if too_deep(shape) else None


def _refused(status: int, message: str) -> JsonRpcError:
    return JsonRpcError(INVALID_REQUEST, message, status=status, legacy_status=status)
