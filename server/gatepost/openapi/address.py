"""Where an API is: the URL that its paths are added to, and what may be sent there."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

from gatepost.openapi.document import Document

VARIABLE = re.compile(r"\{([^{}]*)\}")
PLAIN = re.compile(r"[\x21-\x7e]+", re.ASCII)
PORTS = {"http": 80, "https": 443}


class Nowhere(ValueError):
    """There is no URL to call; the message is a sentence for a model."""


def base_url(document: Document, *, override: str = "", spec_url: str = "") -> str:
    """
    The URL before every path: *override*, else the first server (relative ones to *spec_url*).

    Raises Nowhere.
    """
    if override:
        return checked_base(override)
    if document.dialect == "2.0":
        return checked_base(_old_server(document, spec_url))
    servers = document.member("servers")
    told = _first(servers)
    if told is None:
        # OpenAPI 3: without any, the server is `/`.
        told = "/"
    return checked_base(_absolute(told, spec_url))


def operation_base(servers: Any, *, spec_url: str = "") -> str | None:
    """The base of an operation that has servers of its own; None when it has none."""
    told = _first(servers)
    return None if told is None else checked_base(_absolute(told, spec_url))


def checked_base(url: str) -> str:
    """*url*, if paths can be added to it; raises Nowhere."""
    try:
        parts = urlsplit(url)
        usable = _usable(parts) and PLAIN.fullmatch(url) is not None
    except ValueError:
        usable = False
    if not usable:
        raise Nowhere(
            f"The API's address {url[:200]!r} cannot be called: it must be an http or https URL "
            "without user, query and fragment. Load it again with base_url_override."
        )
    return url.rstrip("/")


def _usable(parts: SplitResult) -> bool:
    # `.port` raises ValueError for what is none. Who puts a user before the host wants the host to
    # be read wrongly, or has put a password into a description.
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
    """The first server's URL, its variables replaced by their defaults."""
    listed = servers if isinstance(servers, list) else []
    found = [one for one in listed if isinstance(one, dict) and isinstance(one.get("url"), str)]
    if not found:
        return None
    variables = found[0].get("variables")
    values = variables if isinstance(variables, dict) else {}
    return VARIABLE.sub(lambda match: _default(values.get(match[1])), found[0]["url"])


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
        return url  # no URL at all, which `checked_base` says
    if not joined:
        raise Nowhere(
            "The description does not say where the API is. Load it again with base_url_override, "
            "for example https://api.example.com/v1."
        )
    return joined


def _old_server(document: Document, spec_url: str) -> str:
    here = urlsplit(spec_url)
    host = document.member("host")
    host = host if isinstance(host, str) and host else here.netloc
    listed = document.member("schemes")
    schemes = [one for one in listed if one in PORTS] if isinstance(listed, list) else []
    if "https" in schemes:
        schemes = ["https"]
    scheme = schemes[0] if schemes else here.scheme or "https"
    path = document.member("basePath")
    path = path if isinstance(path, str) else ""
    if not host:
        return _absolute(path or "/", spec_url)
    return f"{scheme}://{host}/{path.lstrip('/')}"
