"""Bounds what a request may weigh before anything of it is read."""

import sys
from itertools import chain

from gatepost.edge.request import Allow, Refusal, Request, only_post
from gatepost.scope import HEAD_AT_MOST

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
MOST_HEADERS = 100


class Limits:
    """
    Method, header and declared body size; a body without a declared size is counted as it is read.

    The Authorization header does not count here: the gate bounds it itself and answers 400 with a
    challenge, which a client understands better than 431.
    """

    def __init__(
        self, *, max_header_bytes: int, max_body_bytes: int, allow: Allow = only_post
    ) -> None:
        self._max_header_bytes = max_header_bytes
        self._max_body_bytes = max_body_bytes
        self._allow = allow

    def __call__(self, request: Request) -> None:
        raw: list[tuple[bytes, bytes]] = request.scope["headers"]
        headers = request.headers
        if request.method not in METHODS:
            # TRACE would echo the token to a page's script; CONNECT would make us a proxy.
            allow = ((b"allow", self._allow(request.path)),)
            message = "The method is not one this server takes"
            raise Refusal(405, "method_not_allowed", message, allow)
        if len(raw) > MOST_HEADERS:
            raise Refusal(431, "too_many_headers", "The request has too many header fields")
        # Nearly every request comes in one packet smaller than the limit.
        if request.scope.get(HEAD_AT_MOST, sys.maxsize) > self._max_header_bytes:
            self._weigh(request, raw)
        length = headers.get(b"content-length")
        if length is None:
            coding = headers.get(b"transfer-encoding")
            if coding is not None and coding.strip(b" \t").lower() != b"chunked":
                # Read as if it were not compressed, it would be another body (RFC 9112, 6.1).
                raise Refusal(501, "unknown_coding", "Of transfer codings only chunked is read")
            return
        if b"transfer-encoding" in headers or (
            request.repeated and len(request.values(b"content-length")) > 1
        ):
            # Two sizes for one body: who stands in front of us may have believed the other one.
            raise Refusal(400, "ambiguous_length", "The request declares its length twice")
        if not length.isdigit() or len(length) > 18:
            raise Refusal(400, "bad_length", "Content-Length is not a number")
        if int(length) > self._max_body_bytes:
            raise Refusal(413, "body_too_large", "The request's body is too large")

    def _weigh(self, request: Request, raw: list[tuple[bytes, bytes]]) -> None:
        size = sum(map(len, chain.from_iterable(raw)))
        if (
            size > self._max_header_bytes
            and size - sum(map(len, request.values(b"authorization"))) > self._max_header_bytes
        ):
            raise Refusal(431, "headers_too_large", "The request's header fields are too large")
