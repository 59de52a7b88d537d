"""Build the URL of a request: always below the API's base URL, whatever its path."""

import re
from urllib.parse import parse_qsl, unquote, urlsplit

from gatepost import ToolFailure

CREDENTIALS = frozenset(
    {"private_token", "access_token", "job_token", "bearer_token", "client_secret", "password"}
)
"""Parameters that carry credentials: in a URL they would end up in logs."""

CONTROL = re.compile(r"[\x00-\x1f\x7f]")
SERVER = re.compile(r"//|[a-zA-Z][a-zA-Z0-9+.-]*:", re.ASCII)
SLASHES = re.compile(r"[/\\]")
DECODINGS = 3
"""How often servers in a chain may decode a path."""


def address_of(endpoint: str, path: str) -> str:
    """
    Return the URL of *path* below *endpoint*; ToolFailure if it would be outside.

    The path's encoding is kept: `group%2Fproject` is one id. The path never changes the server that
    the token goes to.
    """
    base = _base(endpoint)
    prefix, mark, query = path.partition("?")
    if problem := _problem(prefix, path):
        message = (
            f"`path` {problem}. Write it as in GitLab's documentation, below the base URL: "
            "`/projects/group%2Fproject/issues`."
        )
        raise ToolFailure("validation", message, field="path")
    for name, _ in parse_qsl(query, keep_blank_values=True):
        if name.lower() in CREDENTIALS:
            raise credential(name, "path")
    url = f"{base}/{prefix.removeprefix('/')}{mark}{query}".replace(" ", "%20")
    before, after = urlsplit(base), urlsplit(url)
    if (before.scheme, before.netloc) != (after.scheme, after.netloc):
        raise AssertionError("a path changed the server")
    return url


def credential(name: str, field: str) -> ToolFailure:
    """Return the failure for a token in a place where URLs are logged."""
    message = f"`{field}` must not hold {name}: pass the token as `token`."
    return ToolFailure("validation", message, field=field)


def _base(endpoint: str) -> str:
    try:
        parts = urlsplit(endpoint.strip())
        is_valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or parts.query or parts.fragment or "@" in parts.netloc or "\\" in endpoint:
        message = (
            "`endpoint` must be exactly the base URL of GitLab's REST API, for example "
            "https://gitlab.com/api/v4."
        )
        raise ToolFailure("validation", message, field="endpoint")
    return endpoint.strip().rstrip("/")


def _problem(base: str, path: str) -> str | None:
    """Return the problem of a path, as the end of a sentence."""
    if CONTROL.search(path):
        return "holds control characters"
    if "#" in path:
        return "holds `#`: write it as %23"
    if "\\" in path:
        return "holds a backslash: write it as %5C"
    if SERVER.match(base):
        return "must not name a server"
    decoded = base
    for _ in range(DECODINGS + 1):
        # Some servers drop the part of a name after a semicolon (RFC 3986 section 3.3).
        if any(name.partition(";")[0] in (".", "..") for name in SLASHES.split(decoded)):
            return "must not have `.` or `..` as a segment"
        decoded = unquote(decoded)
    return None
