"""Decide which redirect addresses may be registered, and which requests match them; pure."""

import re
from collections.abc import Collection
from urllib.parse import SplitResult, urlsplit

from gatepost_keys.issuer.settings import LOOPBACK

MAX_LENGTH = 2048
# RFC 3986 characters only: spaces, quotes, backslashes and control characters are read
# differently by browsers and by servers, and that difference is where redirects get hijacked.
ALLOWED = re.compile(r"[A-Za-z0-9\-._~:/?@!$&'()*+,;=%\[\]]+", re.ASCII)
HOST = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9-]{1,63}|\[[0-9a-f:.]+\]")
DOT_SEGMENT = re.compile(r"(?:^|/)(?:\.|%2e){1,2}(?:/|$)", re.IGNORECASE)


def fault(uri: str, private: Collection[str] = ()) -> str | None:
    """
    Return why *uri* cannot be a redirect address; None when it can.

    Accepted are https, http on loopback (RFC 8252 section 7.3) and exactly the addresses in
    *private*. Any other scheme may be claimed by any application, or run as script.
    """
    if len(uri) > MAX_LENGTH:
        return f"is longer than {MAX_LENGTH} characters"
    if "#" in uri:
        return "has a fragment"
    if not ALLOWED.fullmatch(uri):
        return "has characters that no URL has"
    if uri in private:
        return None
    try:
        parts = urlsplit(uri)
        _ = parts.port
    except ValueError:
        return "is not a URL"
    return _web_fault(parts)


def matches(registered: str, requested: str) -> bool:
    """
    Return whether *requested* is the registered address: byte for byte, save the port on loopback.

    A native app listens on whatever port is free, so RFC 8252 section 7.3 has the port ignored
    there; everything else, the host name included, stays exact.
    """
    if registered == requested:
        return True
    if fault(requested) is not None:
        return False
    registered_url, requested_url = urlsplit(registered), urlsplit(requested)
    return (
        registered_url.scheme == requested_url.scheme == "http"
        and registered_url.hostname in LOOPBACK
        and _without_port(registered_url) == _without_port(requested_url)
    )


def destination(uri: str) -> str:
    """Return where *uri* leads, for a person: a host, this computer, or an application's scheme."""
    parts = urlsplit(uri)
    if parts.scheme not in {"http", "https"}:
        return f"{parts.scheme}: (an application on this computer)"
    if parts.hostname in LOOPBACK:
        return f"{parts.netloc} (this computer)"
    return parts.netloc


def form_target(uri: str) -> str:
    """Return the content-security-policy source that lets a form's answer redirect to *uri*."""
    parts = urlsplit(uri)
    if parts.scheme in {"http", "https"}:
        return f"{parts.scheme}://{parts.netloc}"
    return f"{parts.scheme}:"


def _without_port(parts: SplitResult) -> tuple[str, str | None, str, str]:
    return (parts.scheme, parts.hostname, parts.path, parts.query)


def _web_fault(parts: SplitResult) -> str | None:
    if parts.scheme not in {"http", "https"}:
        return "has a scheme that this issuer does not redirect to"
    if "@" in parts.netloc:
        # https://claude.ai@evil.example leads to evil.example and shows claude.ai.
        return "carries user information"
    host = parts.netloc.rpartition(":")[0] if _has_port(parts) else parts.netloc
    if not HOST.fullmatch(host.lower()):
        return "has no proper host"
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        return "is plain http beyond this machine"
    if DOT_SEGMENT.search(parts.path):
        # /callback/../steal becomes another address when it is normalised.
        return "has dot segments"
    return None


def _has_port(parts: SplitResult) -> bool:
    return parts.port is not None or parts.netloc.endswith(":")
