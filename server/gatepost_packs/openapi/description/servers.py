"""Find the base URL of an API, and decide what may be sent there."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

from gatepost_packs.openapi.description.document import ApiDescription

VARIABLE = re.compile(r"\{([^{}]*)\}")
PRINTABLE = re.compile(r"[\x21-\x7e]+", re.ASCII)
PORTS = {"http": 80, "https": 443}


class NoServerUrl(ValueError):
    """There is no URL to call; the message is a sentence for a model."""


def base_url(document: ApiDescription, *, override: str = "", spec_url: str = "") -> str:
    """
    Return the base URL: *override*, else the first server (relative ones resolved against
    *spec_url*).

    Raise NoServerUrl if there is none.
    """
    if override:
        return checked_base(override)
    if document.dialect == "2.0":
        return checked_base(_old_server(document, spec_url))
    servers = document.member("servers")
    url = _first(servers)
    if url is None:
        # OpenAPI 3: without servers, the server is `/`.
        url = "/"
    return checked_base(_absolute(url, spec_url))


def operation_base(servers: Any, *, spec_url: str = "") -> str | None:
    """Return the base URL of an operation with its own servers; None if it has none."""
    url = _first(servers)
    return None if url is None else checked_base(_absolute(url, spec_url))


def checked_base(url: str) -> str:
    """Return *url* if paths can be added to it; raise NoServerUrl otherwise."""
    try:
        parts = urlsplit(url)
        usable = _usable(parts) and PRINTABLE.fullmatch(url) is not None
    except ValueError:
        usable = False
    if not usable:
        raise NoServerUrl(
            f"The API's address {url[:200]!r} cannot be called. It must be an http or https URL "
            "without user, query and fragment. Load the API again with base_url_override."
        )
    return url.rstrip("/")


def _usable(parts: SplitResult) -> bool:
    # `.port` raises ValueError for an invalid port. A user before the host could make a reader
    # mistake the host, or is a password in a description.
    return (
        parts.scheme in PORTS
        and bool(parts.hostname)
        and (parts.port is None or parts.port > 0)
        and "@" not in parts.netloc
        and "\\" not in parts.netloc + parts.path
        and not parts.query
        and not parts.fragment
    )


def _first(servers: Any) -> str | None:
    """Return the first server's URL, its variables replaced by their defaults."""
    listed = servers if isinstance(servers, list) else []
    valid_servers = [
        server
        for server in listed
        if isinstance(server, dict) and isinstance(server.get("url"), str)
    ]
    if not valid_servers:
        return None
    variables = valid_servers[0].get("variables")
    values = variables if isinstance(variables, dict) else {}
    return VARIABLE.sub(lambda match: _default(values.get(match[1])), valid_servers[0]["url"])


def _default(variable: Any) -> str:
    if not isinstance(variable, Mapping):
        return ""
    options = variable.get("enum")
    first = options[0] if isinstance(options, list) and options else ""
    return str(variable.get("default", first))


def _absolute(url: str, spec_url: str) -> str:
    try:
        if urlsplit(url).scheme:
            return url
        joined = urljoin(spec_url, url) if spec_url else ""
    except ValueError:
        return url  # no URL at all: `checked_base` refuses it
    if not joined:
        raise NoServerUrl(
            "The description does not say where the API is. Load it again with base_url_override, "
            "for example https://api.example.com/v1."
        )
    return joined


def _old_server(document: ApiDescription, spec_url: str) -> str:
    loaded_from = urlsplit(spec_url)
    host = document.member("host")
    host = host if isinstance(host, str) and host else loaded_from.netloc
    listed = document.member("schemes")
    schemes = [name for name in listed if name in PORTS] if isinstance(listed, list) else []
    if "https" in schemes:
        schemes = ["https"]
    scheme = schemes[0] if schemes else loaded_from.scheme or "https"
    path = document.member("basePath")
    path = path if isinstance(path, str) else ""
    if not host:
        return _absolute(path or "/", spec_url)
    return f"{scheme}://{host}/{path.lstrip('/')}"
