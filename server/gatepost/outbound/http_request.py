"""Build outbound requests, with checks against header injection and other smuggling."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Unpack
from urllib.parse import quote

import httpcore2
import httpx2
import msgspec

from gatepost.outbound.transport_errors import refused_url, unsent
from gatepost.tools.context.interfaces import Sending, Upload
from gatepost_authz.pinning import core_url

URL_CHARACTERS = 8_192
HEADERS = 64
HEADER_BYTES = 32_768
BODY_BYTES = 32_000_000
KEPT_CHARACTERS = 500
"""The longest URL that is remembered after it was parsed; one with a query may hold secrets."""
CONNECT_S = 10.0
POOL_S = 5.0
"""How long a request waits for one of its tenant's connections."""
CORRELATION = "x-octopus-correlation-id"

TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}", re.ASCII)
VALUE = re.compile(r"[\t\x20-\x7e]*", re.ASCII)
CONTENT_TYPE = re.compile(r"[\x20-\x7e]{1,255}", re.ASCII)
NON_ASCII = re.compile(r"[^\x00-\x7f]+")
AUTHORITY = re.compile(r"[^/?#]*//[^/?#]*")

MANAGED_HEADERS = frozenset(
    {"accept-encoding", "connection", "content-length", "expect", "host", "http2-settings"}
    | {"keep-alive", "te", "trailer", "transfer-encoding", "upgrade", CORRELATION}
)
"""Headers that frame a message or that only this client sets (RFC 9110 section 7.6.1)."""

HARMLESS_HEADERS = frozenset(
    {"accept", "accept-language", "cache-control", "if-modified-since"}
) | {
    "if-none-match",
    "range",
    "user-agent",
}
"""Headers without secrets, which may be sent to any host and unencrypted."""

UNSENT_METHODS = frozenset({"CONNECT", "TRACE", "TRACK"})


class OutboundRequest(msgspec.Struct, frozen=True):
    """One outbound request, to the first URL or after a redirect."""

    method: str
    url: str
    """Without a fragment."""
    headers: Mapping[str, str]
    """The tool's own headers, by lower-case names."""
    body: bytes = b""
    body_headers: Mapping[str, str] = {}
    """The headers that describe the body, and are sent only with it."""
    confidential: bool = False
    """Whether it contains a secret; a body always counts as one."""
    parsed: httpx2.URL | None = None
    """The parts of *url*, if it was parsed already: parsing takes a tenth of a small request."""

    @property
    def where(self) -> httpx2.URL:
        """Return the parts of the URL."""
        return self.parsed or httpx2.URL(self.url)

    def request(self, own_headers: Mapping[str, str], timeout_s: float) -> httpcore2.Request:
        """Build the transport's request, with the headers *own_headers* of every request."""
        where = self.where
        headers = {**own_headers, **self.body_headers, **self.headers}
        fields = [(b"Host", where.netloc)]
        fields += [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()]
        if self.body or self.method in {"POST", "PUT", "PATCH", "QUERY"}:
            fields.append((b"Content-Length", b"%d" % len(self.body)))
        timeout = {
            "connect": min(timeout_s, CONNECT_S),
            "pool": min(timeout_s, POOL_S),
            "read": timeout_s,
            "write": timeout_s,
        }
        return httpcore2.Request(
            self.method,
            core_url(where),
            headers=fields,
            content=self.body,
            extensions={"timeout": timeout},
        )


def outbound_request(method: str, url: str, options: Sending) -> OutboundRequest:
    """
    Return the request that a tool asks for; raises ToolFailure if it must not be sent.

    *url* is a `plain_url` and was checked in this form, because parsing it would normalize it and
    hide an attack.
    """
    if not TOKEN.fullmatch(method) or method.upper() in UNSENT_METHODS:
        raise unsent(f"The method {method[:40]!r} cannot be sent.")
    headers = checked_headers(options.get("headers", {}))
    try:
        where = parsed_url(url)
    except httpx2.InvalidURL:
        raise refused_url("it is not a URL") from None
    try:
        params = flat(options.get("params", {}))
        if params:
            where = where.copy_merge_params(params)
        body, body_headers = _body(where, **options)
    except httpx2.InvalidURL:
        raise unsent(f"The URL is longer than {URL_CHARACTERS} characters.") from None
    except (TypeError, ValueError, RecursionError):
        raise unsent("The data has a value that JSON or a form cannot express.") from None
    if len(str(where)) > URL_CHARACTERS:
        raise unsent(f"The URL is longer than {URL_CHARACTERS} characters.")
    if len(body) > BODY_BYTES:
        raise unsent(f"The body has {len(body)} bytes; at most {BODY_BYTES} are sent.")
    if "uploads" not in options and "content-type" in headers:
        body_headers = {"content-type": headers["content-type"]} if body else {}
    other_headers = {name: value for name, value in headers.items() if name != "content-type"}
    text = str(where)
    parsed = where if text == url else parsed_url(text)
    return OutboundRequest(
        method=method.upper(),
        url=text,
        parsed=parsed,
        headers=other_headers,
        body=body,
        body_headers=body_headers,
        confidential=bool(body) or options.get("confidential", False),
    )


def parsed_url(url: str) -> httpx2.URL:
    """Parse a URL, or raise httpx2.InvalidURL; short ones without a query are remembered."""
    if len(url) <= KEPT_CHARACTERS and "?" not in url:
        return _remembered(url)
    return httpx2.URL(url)


@lru_cache(maxsize=1_000)
def _remembered(url: str) -> httpx2.URL:
    return httpx2.URL(url)


def plain_url(url: str) -> str:
    """Return *url* without its fragment, and with its path and query in ASCII."""
    url = url.partition("#")[0]
    if len(url) > URL_CHARACTERS:
        raise unsent(f"The URL is longer than {URL_CHARACTERS} characters.")
    match = AUTHORITY.match(url)
    end = match.end() if match else 0
    try:
        return url[:end] + NON_ASCII.sub(lambda match: quote(match[0]), url[end:])
    except UnicodeEncodeError:
        raise refused_url("it holds half a character") from None


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return a tool's headers by lower-case names; raises ToolFailure for forbidden headers."""
    checked: dict[str, str] = {}
    for name, value in headers.items():
        lower = name.lower()
        if not TOKEN.fullmatch(name) or not VALUE.fullmatch(value):
            # The value may be a secret, so the message has only the name.
            message = f"The header {name[:100]!r} is not printable ASCII, so it cannot be sent."
            raise unsent(message)
        if lower in MANAGED_HEADERS or lower.startswith("proxy-"):
            raise unsent(f"The header {name} cannot be set: leave it out.")
        if lower in checked:
            raise unsent(f"The header {name} is given twice.")
        checked[lower] = value.strip(" \t")
    size = sum(len(name) + len(value) for name, value in checked.items())
    if len(checked) > HEADERS or size > HEADER_BYTES:
        raise unsent(f"At most {HEADERS} headers of {HEADER_BYTES} bytes in all can be sent.")
    return checked


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values for a query or a form: strings and lists of them, without None."""
    return {
        name: [as_text(item) for item in value]
        if isinstance(value, list | tuple)
        else as_text(value)
        for name, value in values.items()
        if value is not None
    }


def as_text(value: object) -> str:
    """Return one value as a string; raises TypeError for lists and objects."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise TypeError("not one value")


def _body(where: httpx2.URL, **options: Unpack[Sending]) -> tuple[bytes, dict[str, str]]:
    """Return the body and its content type."""
    kinds = {"json", "content"} & options.keys()
    if len(kinds) + bool({"form", "uploads"} & options.keys()) > 1:
        raise RuntimeError("a request carries one of json, content, and form with uploads")
    if "content" in options:
        return options["content"], {"content-type": "application/octet-stream"}
    if "json" in options:
        request = httpx2.Request("POST", where, json=options["json"])
    elif "uploads" in options:
        uploads = [_part(upload) for upload in options["uploads"]]
        request = httpx2.Request("POST", where, data=flat(options.get("form", {})), files=uploads)
    elif "form" in options:
        request = httpx2.Request("POST", where, data=flat(options["form"]))
    else:
        return b"", {}
    return request.read(), {"content-type": request.headers.get("content-type", "")}


def _part(upload: Upload) -> tuple[str, tuple[str, bytes, str]]:
    if not CONTENT_TYPE.fullmatch(upload.content_type):
        # A line end in it would break out of the part's header.
        raise unsent(f"The content type of {upload.filename[:100]!r} is not printable ASCII.")
    if len(upload.data) > BODY_BYTES:
        raise unsent(f"{upload.filename[:100]!r} is larger than {BODY_BYTES} bytes.")
    return upload.name, (upload.filename, upload.data, upload.content_type)
