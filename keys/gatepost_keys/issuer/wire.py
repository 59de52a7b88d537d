"""Parse requests into parameters and write responses, within limits and without guessing."""

from collections.abc import Mapping
from urllib.parse import parse_qsl

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response

from gatepost_keys.issuer.authorization_server import IssuerResponse, RequestForm

MAX_BODY = 16_384
MAX_QUERY = 8_192
MAX_FIELDS = 50
READ_SECONDS = 10


class MalformedRequest(Exception):
    """A request that cannot be read; *status* and a sentence for the developer."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.status = status


async def body_of(request: Request, media_type: str) -> bytes:
    """
    Return the whole body, at most MAX_BODY bytes within READ_SECONDS, of exactly *media_type*.
    """
    body = bytearray()
    try:
        with anyio.fail_after(READ_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY:
                    raise MalformedRequest(f"The body is larger than {MAX_BODY} bytes", 413)
    except TimeoutError:
        raise MalformedRequest("The body did not arrive in time", 408) from None
    except ClientDisconnect:
        raise MalformedRequest("The body did not arrive") from None
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and content_type != media_type:
        # A form on a foreign page can carry text/plain that reads as JSON, without asking first.
        raise MalformedRequest(f"Content-Type must be {media_type}", 415)
    return bytes(body)


async def form_of(request: Request) -> RequestForm:
    """Return the parameters of a form body (RFC 6749 appendix B)."""
    body = await body_of(request, "application/x-www-form-urlencoded")
    return form_from(request, body)


def query_of(request: Request) -> RequestForm:
    """Return the parameters of the query."""
    query: bytes = request.scope["query_string"]
    if len(query) > MAX_QUERY:
        raise MalformedRequest(f"The query is longer than {MAX_QUERY} bytes", 414)
    return form_from(request, query)


def parameters(encoded: bytes) -> list[tuple[str, str]]:
    """Return names and values of a form or query; MalformedRequest if any part is ambiguous."""
    if not encoded:
        return []
    try:
        return parse_qsl(
            encoded.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=MAX_FIELDS,
        )
    except ValueError:
        raise MalformedRequest("The parameters cannot be read") from None


def form_from(request: Request, encoded: bytes) -> RequestForm:
    """Return the parameters that *encoded* holds, with the client's credentials from *request*."""
    values: dict[str, str] = {}
    resources = []
    for name, value in parameters(encoded):
        if name == "resource":
            resources.append(value)
        elif name in values:
            # Which of two values counts differs from one reader to the next (RFC 6749 3.1).
            raise MalformedRequest("A parameter is given twice")
        elif value:
            # A parameter without a value counts as left out (RFC 6749 section 3.1).
            values[name] = value
    headers = request.headers.getlist("authorization")
    if len(headers) > 1:
        raise MalformedRequest("Two Authorization headers")
    return RequestForm(
        request.method,
        str(request.url),
        values,
        tuple(resources),
        headers[0] if headers else None,
    )


def json(
    body: Mapping[str, object], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a JSON response that must not be cached, unless *headers* say otherwise."""
    return Response(
        msgspec.json.encode(body),
        status,
        {"Cache-Control": "no-store", **(headers or {})},
        "application/json",
    )


def refuse(sentence: str, status: int = 400, error: str = "invalid_request") -> Response:
    """Return an OAuth error answer (RFC 6749 section 5.2)."""
    return json({"error": error, "error_description": sentence}, status)


def response(answer: IssuerResponse, *, method: str = "GET") -> Response:
    """Return the decision of an endpoint as an HTTP response."""
    if answer.location:
        # 303 after a form: no browser then sends the form on to the client (RFC 9700 4.12).
        status = 303 if method == "POST" else 302
        return RedirectResponse(answer.location, status, {"Cache-Control": "no-store"})
    return json(answer.body, answer.status, answer.headers)
