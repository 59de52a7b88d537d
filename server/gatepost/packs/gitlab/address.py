"""Where a request goes: below the API's base URL, whatever its path says."""

import re
from urllib.parse import parse_qsl, unquote, urlsplit

from gatepost.tools.api import ToolFailure

CREDENTIALS = frozenset(
    {"private_token", "access_token", "job_token", "bearer_token", "client_secret", "password"}
)
"""Parameters that name who calls: in a URL they would end up in logs."""

CONTROL = re.compile(r"[\x00-\x1f\x7f]")
SERVER = re.compile(r"//|[a-zA-Z][a-zA-Z0-9+.-]*:", re.ASCII)
SLASHES = re.compile(r"[/\\]")
DECODINGS = 3
"""How often servers one behind the other may undo an encoding."""


def address_of(endpoint: str, path: str) -> str:
    """
    The URL of *path* below *endpoint*; ToolFailure when it would be another's.

    What is encoded in it stays so: `group%2Fproject` is one id. The path never changes the server
    that the token goes to.
    """
    base = _base(endpoint)
    place, mark, query = path.partition("?")
    if problem := _problem(place, path):
        message = (
            f"`path` {problem}. Write it as in GitLab's documentation, below the base URL: "
            "`/projects/group%2Fproject/issues`."
        )
        raise ToolFailure("validation", message, field="path")
    for name, _ in parse_qsl(query, keep_blank_values=True):
        if name.lower() in CREDENTIALS:
            raise credential(name, "path")
    url = f"{base}/{place.removeprefix('/')}{mark}{query}".replace(" ", "%20")
    before, after = urlsplit(base), urlsplit(url)
    if (before.scheme, before.netloc) != (after.scheme, after.netloc):
        raise AssertionError("a path changed the server")
    return url


def credential(name: str, field: str) -> ToolFailure:
    """What to say of a token that stands where URLs are logged."""
    message = f"`{field}` should hold no {name}: the token goes into `token`."
    return ToolFailure("validation", message, field=field)


def _base(endpoint: str) -> str:
    try:
        parts = urlsplit(endpoint.strip())
        plain = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        plain = False
    if not plain or parts.query or parts.fragment or "@" in parts.netloc or "\\" in endpoint:
        message = (
            "`endpoint` should be the base URL of GitLab's REST API and nothing more, for example "
            "https://gitlab.com/api/v4."
        )
        raise ToolFailure("validation", message, field="endpoint")
    return endpoint.strip().rstrip("/")


def _problem(place: str, path: str) -> str | None:
    """What is wrong with a path, as the end of a sentence."""
    if CONTROL.search(path):
        return "holds control characters"
    if "#" in path:
        return "holds `#`: write it as %23"
    if "\\" in path:
        return "holds a backslash: write it as %5C"
    if SERVER.match(place):
        return "should not name a server"
    decoded = place
    for _ in range(DECODINGS + 1):
        # Some servers leave out what follows a semicolon in a name (RFC 3986 section 3.3).
        if any(name.partition(";")[0] in (".", "..") for name in SLASHES.split(decoded)):
            return "should hold no `.` and `..` as a name"
        decoded = unquote(decoded)
    return None
