"""The bytes of a request: within a size, within a time, of the right type."""

from starlette.types import Receive

from gatepost import intake
from gatepost.intake import TooLarge
from gatepost.mcp.exchange import Headers
from gatepost.mcp.jsonrpc import INVALID_REQUEST, Refused

JSON = b"application/json"


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
    """Read the whole body; raises Refused when it is too large, Gone when the rest never comes."""
    try:
        return await intake.read_body(receive, limit)
    except TooLarge:
        raise _refused(413, f"The body is larger than {limit} bytes") from None


def _refused(status: int, message: str) -> Refused:
    return Refused(INVALID_REQUEST, message, status=status, legacy_status=status)
