"""Check the fields that a person enters about an upstream: names, URLs, headers and patterns."""

import re
from collections.abc import Mapping

from gatepost.upstreams.upstream_server import MAX_DESCRIPTION, MAX_HEADERS, MAX_NAME, MAX_URL
from gatepost_authz.address_policy import ToolAddressPolicy

HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}", re.ASCII)
HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?", re.ASCII)
API_KEY = re.compile(r"[\x21-\x7e]{8,8192}", re.ASCII)
"""
A superset of the tokens of RFC 6750 that fits a header; shorter keys cannot be kept out of answers.
"""
MAX_HEADER_BYTES = 32_768
PATTERN = re.compile(r"!?[A-Za-z0-9_.*/-]{1,200}", re.ASCII)
SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}", re.ASCII)

RESERVED_HEADERS = frozenset(
    {"accept", "accept-encoding", "connection", "cookie", "expect", "forwarded", "host"}
    | {"idempotency-key"}
    | {
        "keep-alive",
        "last-event-id",
        "te",
        "trailer",
        "traceparent",
        "tracestate",
        "transfer-encoding",
    }
    | {"upgrade", "user-agent"}
)
"""Headers that frame a message, or that only this server's own client sets."""
OUR_PREFIXES = ("content-", "proxy-", "mcp-", "x-forwarded-")


class InvalidField(ValueError):
    """A field has an invalid value; the message is a sentence and repeats no secret."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field, self.message = field, message


def checked_name(name: str) -> str:
    """Return *name* if it can name a server or an agent; raise InvalidField."""
    if not name.strip():
        raise InvalidField("name", "The name is empty.")
    if len(name) > MAX_NAME:
        raise InvalidField("name", f"The name has more than {MAX_NAME} characters.")
    if not name.isprintable() or name != name.strip():
        raise InvalidField(
            "name",
            "The name begins or ends with a space, or contains a character that cannot be printed.",
        )
    return name


def checked_description(description: str) -> str:
    """Return *description* if it is short enough; raise InvalidField."""
    if len(description.encode("utf-8", "surrogatepass")) > MAX_DESCRIPTION:
        raise InvalidField("description", f"The description has more than {MAX_DESCRIPTION} bytes.")
    if any(not char.isprintable() and char not in "\n\t" for char in description):
        raise InvalidField(
            "description", "The description contains a character that cannot be printed."
        )
    return description


def checked_url(url: str, address_policy: ToolAddressPolicy) -> str:
    """Return *url* if requests to it are allowed by its text; raise InvalidField."""
    if not url:
        raise InvalidField("url", "The URL is empty.")
    if len(url) > MAX_URL:
        raise InvalidField("url", f"The URL has more than {MAX_URL} characters.")
    if problem := address_policy.problem(url):
        raise InvalidField("url", f"The URL cannot be used: {problem}.")
    if url.startswith("http:") and not allows_http(url, address_policy):
        raise InvalidField(
            "url",
            "The URL is unencrypted: use https. An operator can allow plain http to one host of "
            "the own network with its port, in `network.allow_hosts`.",
        )
    return url


def allows_http(url: str, address_policy: ToolAddressPolicy) -> bool:
    """Return whether the configuration allows plain http to the host of *url*."""
    host, _, port = url.removeprefix("http://").partition("/")[0].rpartition(":")
    return port.isdigit() and address_policy.allows_http(host.strip("[]"), int(port))


def checked_header(name: str) -> str:
    """Return *name* in lower case if it can be set for an upstream; raise InvalidField."""
    lower = name.lower()
    if not HEADER_NAME.fullmatch(name):
        raise InvalidField("headers", f"{name[:100]!r} is not a header name.")
    if lower == "authorization":
        raise InvalidField(
            "headers", "The header Authorization cannot be set here: set `api_key` instead."
        )
    # Servers with CGI or WSGI behind them read an underscore as a hyphen.
    read = lower.replace("_", "-")
    if read in RESERVED_HEADERS or read.startswith(OUR_PREFIXES):
        raise InvalidField(
            "headers", f"The header {name} cannot be set, because Gatepost sets it. Leave it out."
        )
    return lower


def checked_header_names(names: Mapping[str, object]) -> dict[str, str]:
    """Return lower-case name = name as written; raise InvalidField."""
    if len(names) > MAX_HEADERS:
        raise InvalidField("headers", f"There are more than {MAX_HEADERS} headers.")
    names_by_lower: dict[str, str] = {}
    for name in names:
        lower = checked_header(name)
        if lower in names_by_lower:
            raise InvalidField("headers", f"The header {name} is given twice.")
        names_by_lower[lower] = name
    return names_by_lower


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return header values by lower-case names; raise InvalidField, which repeats no value."""
    values = {lower: headers[name] for lower, name in checked_header_names(headers).items()}
    for lower, value in values.items():
        if not HEADER_VALUE.fullmatch(value):
            raise InvalidField(
                "headers",
                f"The value of the header {lower} is empty, begins or ends with a space, or is "
                "not printable ASCII.",
            )
    if sum(len(name) + len(value) for name, value in values.items()) > MAX_HEADER_BYTES:
        raise InvalidField("headers", f"The headers have more than {MAX_HEADER_BYTES} bytes.")
    return values


def checked_api_key(key: str) -> str:
    """Return *key* if it can be sent as a bearer token; raise InvalidField, never with the key."""
    if not API_KEY.fullmatch(key):
        raise InvalidField(
            "api_key", "An API key has 8 to 8192 printable ASCII characters without spaces."
        )
    return key
