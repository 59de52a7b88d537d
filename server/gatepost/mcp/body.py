"""The bytes of a request: within a size, within a time, of the right type."""

from starlette.types import Receive

from gatepost.mcp.exchange import Headers
from gatepost.mcp.jsonrpc import INVALID_REQUEST, Refused

JSON = b"application/json"


class Gone(Exception):
    """The client hung up before its request was complete."""


TOO_SLOW = Refused(
    INVALID_REQUEST, "The body did not arrive in time", status=408, legacy_status=408
)


def check_type(headers: Headers) -> None:
    """Only JSON: a form or plain text is what a foreign web page can post without asking (T-17)."""
    declared = headers.get(b"content-type", b"")
    if declared != JSON and declared.partition(b";")[0].strip().lower() != JSON:
        raise _refused(415, "Content-Type must be application/json")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise _refused(415, "The body must not be compressed")


async def read_body(receive: Receive, limit: int) -> bytes:
    """
    Read the whole body; raises Refused when it is too large, Gone when the rest never comes.

    What declares itself too large never gets here: the edge refuses it unread.
    """
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        body: bytes = message.get("body", b"")
        if len(body) <= limit:
            return body
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    while message["type"] == "http.request":
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            return b"".join(chunks)
        message = await receive()
    raise Gone


def _too_large(limit: int) -> Refused:
    return _refused(413, f"The body is larger than {limit} bytes")


def _refused(status: int, message: str) -> Refused:
    return Refused(INVALID_REQUEST, message, status=status, legacy_status=status)
