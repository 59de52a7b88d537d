"""
Decide which protocol era a request belongs to and how to serve it; a pure dispatch table.

One URL serves 2026-07-28 (*modern*: every request is stateless) and the earlier revisions with a
handshake (*legacy*: `initialize`, then a session). The branches below are the rows DE-01 to DE-15
of the requirement table.
"""

from enum import Enum

MODERN = "2026-07-28"
HANDSHAKE = ("2025-11-25", "2025-06-18", "2025-03-26")
"""The handshake revisions served, newest first."""
SERVED = (MODERN, *HANDSHAKE)
NEWEST_HANDSHAKE = HANDSHAKE[0]
BATCHING = "2025-03-26"
"""The only revision with batches; also assumed for a request with neither session nor header."""
BEFORE_STREAMABLE = "2024-11-05"
"""
The last revision without this transport. Clients still send it in the header, copied from samples.
Without a session such a request is served as if it had no header, as the official SDKs do.
"""

_LEGACY = frozenset(HANDSHAKE)


class MessageKind(Enum):
    """The kind of message in a POST body."""

    REQUEST = "request"
    NOTIFICATION = "notification"
    RESPONSE = "response"
    BATCH = "batch"


class RequestHandling(Enum):
    """What the endpoint does with a request; the value names the rows of the requirement table."""

    MODERN = "DE-01"
    """Check headers and `_meta`, then serve statelessly."""
    NO_META = "DE-02"
    """400 and -32602 naming the missing `_meta` keys."""
    MISMATCH = "DE-03"
    """400 and -32020: header and body name different versions."""
    UNSERVED = "DE-04"
    """400 and -32022 with the versions served."""
    HANDSHAKE = "DE-05"
    """Open a session."""
    SESSION = "DE-06"
    """Look up the session; 404 if it is unknown, has ended or belongs to another caller."""
    WITHOUT_SESSION = "DE-07"
    """Serve the request without a session."""
    NO_SESSION = "DE-12 DE-13 without a session"
    """400: this verb needs a session."""
    SESSION_OR_UNSERVED = "DE-08"
    """As SESSION if the session is valid, else as UNSERVED."""
    BATCH = "DE-09"
    """Look up the session; serve the batch if the session's revision has batches."""
    BATCH_WITHOUT_SESSION = "DE-09 without a session"
    """Serve the batch without a session."""
    NO_BATCH = "DE-09 refused"
    """400 and -32600."""
    RESPONSE = "DE-10"
    """202 into the session."""
    NO_RESPONSE = "DE-10 refused"
    """400 and -32600: the server has sent no request to this client."""
    DROP = "DE-11"
    """202: a notification has no effect without a session."""
    LISTEN = "DE-12"
    """Look up the session; keep a stream open."""
    END = "DE-13"
    """Look up the session; end it."""
    NOT_ALLOWED = "DE-12 DE-13 refused"
    """405 with `Allow`."""


def is_modern(version: str) -> bool:
    """Return whether a version is modern; unknown ones are, so that they get the served list."""
    return version not in _LEGACY


def decide(
    verb: str,
    kind: MessageKind | None = None,
    *,
    header: str | None = None,
    body: str | None = None,
    session: bool = False,
    handshake: bool = False,
) -> RequestHandling:
    """
    Decide how to serve a request.

    *header* is `MCP-Protocol-Version`, *body* the version in `_meta`, *session* whether there is an
    `Mcp-Session-Id`, *handshake* whether the method is `initialize`.
    """
    if header == BEFORE_STREAMABLE and body is None and not session:
        header = None
    if verb != "POST":
        return _verb(verb, header, session)
    if kind is MessageKind.REQUEST:
        return _request(header, body, session, handshake)
    if kind is MessageKind.NOTIFICATION:
        return _notification(header or body, session)
    served_by_session = session and (header is None or not is_modern(header))
    if kind is MessageKind.BATCH:
        if not session and header in (None, BATCHING):
            return RequestHandling.BATCH_WITHOUT_SESSION
        return RequestHandling.BATCH if served_by_session else RequestHandling.NO_BATCH
    return RequestHandling.RESPONSE if served_by_session else RequestHandling.NO_RESPONSE


def _verb(verb: str, header: str | None, session: bool) -> RequestHandling:
    served = {"GET": RequestHandling.LISTEN, "DELETE": RequestHandling.END}
    if verb not in served or (header is not None and is_modern(header)):
        return RequestHandling.NOT_ALLOWED
    return served[verb] if session else RequestHandling.NO_SESSION


def _request(
    header: str | None, body: str | None, session: bool, handshake: bool
) -> RequestHandling:
    if body is not None and is_modern(body):
        # A session id or Last-Event-ID beside it is ignored (DE-14).
        if header != body:
            return RequestHandling.MISMATCH
        return RequestHandling.MODERN if body == MODERN else RequestHandling.UNSERVED
    if body is not None:
        if header != body:
            return RequestHandling.MISMATCH
        return RequestHandling.SESSION_OR_UNSERVED if session else RequestHandling.UNSERVED
    if header is not None and is_modern(header):
        return RequestHandling.NO_META
    if session:
        return RequestHandling.SESSION
    return RequestHandling.HANDSHAKE if handshake else RequestHandling.WITHOUT_SESSION


def _notification(version: str | None, session: bool) -> RequestHandling:
    if version is not None and is_modern(version):
        return RequestHandling.DROP if version == MODERN else RequestHandling.UNSERVED
    return RequestHandling.SESSION if session else RequestHandling.DROP


def counter_offer(requested: str) -> str:
    """Return the version that `initialize` answers: *requested*, or the newest with a handshake."""
    return requested if requested in _LEGACY else NEWEST_HANDSHAKE
