"""The request as a check sees it, and the answers that a check can give."""

from collections.abc import Callable

import msgspec
from starlette.types import Scope

from gatepost_authz.protected_resource import WELL_KNOWN

CORRELATION = b"x-octopus-correlation-id"
ORIGIN = b"origin"


class EdgeRefusal(Exception):
    """
    A request ends at the edge.

    ``code`` is the stable word on the wire, ``message`` the fixed sentence; ``headers`` come with
    the answer. It quotes nothing of the request.
    """

    def __init__(
        self, status: int, code: str, message: str, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers


class Preflight(msgspec.Struct, frozen=True):
    """The answer to a CORS preflight (Fetch standard); it has no body."""

    headers: tuple[tuple[bytes, bytes], ...]


class EdgeRequest(msgspec.Struct):
    """
    One request while the checks look at it.

    ``headers`` holds each name once (the last value wins), so a check about a header that decides
    something asks ``values`` for all of them when ``repeated`` says that a name came twice.
    """

    id: str
    """The request's id, which is part of its answer and its log line."""
    scope: Scope
    method: str
    path: str
    headers: dict[bytes, bytes]
    repeated: bool
    peer: str
    """The address of the client: of the connection, or, after the checks, from a trusted proxy."""
    correlation: bytes | None
    """The caller's own id for the work that this request is part of."""

    def values(self, name: bytes) -> list[bytes]:
        """Return every value of a header in order; *name* is in lower case."""
        if self.repeated:
            return [value for key, value in self.scope["headers"] if key == name]
        value = self.headers.get(name)
        return [] if value is None else [value]


Allow = Callable[[str], bytes]
"""Returns the methods of a path, for the `Allow` that every 405 needs (RFC 9110 section 15.5.6)."""


def only_post(path: str) -> bytes:
    """Return the methods of a server that serves only the endpoint."""
    return b"POST"


def is_public_document(path: str, own_rules: tuple[str, ...]) -> bool:
    """
    Return whether every page may read what stands at *path*, or its application decides.

    Those are the metadata documents (RFC 9728 section 3) and the paths below *own_rules*.
    """
    return WELL_KNOWN in path or path.startswith(("/.well-known/", *own_rules))


CheckRequest = Callable[[EdgeRequest], Preflight | None]
"""
Lets a request pass (None), answers it (Preflight), or raises EdgeRefusal, by the request's head and
its connection alone.
"""
