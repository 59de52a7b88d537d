"""Decide which protected resources a token may be for (RFC 8707); pure."""

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from gatepost_keys.issuer.settings import LOOPBACK, TENANT


class Resources:
    """The configured resources, exact or with `{tenant}` as one path segment."""

    def __init__(self, resources: Sequence[str]) -> None:
        self._exact: dict[str, str] = {}
        for url in resources:
            if "{tenant}" not in url:
                self._exact.setdefault(folded(url), url)
        self._templates = [
            re.compile(re.escape(url).replace(r"\{tenant\}", TENANT.pattern), re.ASCII)
            for url in resources
            if "{tenant}" in url
        ]
        single = len(self._exact) == 1 and not self._templates
        self.default = next(iter(self._exact.values())) if single else None
        """The resource of a request that names none: the only one there is, else None."""

    def find(self, requested: str) -> str | None:
        """
        Return the canonical form of *requested*; None when this issuer does not serve it.

        `localhost`, `127.0.0.1` and `[::1]` are one resource, under the name configured first: the
        resource server has one audience however a person typed its address. `http://host/` is
        taken for `http://host`, which the TypeScript SDK cannot send without the slash.
        """
        if any(template.fullmatch(requested) for template in self._templates):
            return requested
        folded_uri = folded(requested)
        bare = folded_uri.removesuffix("/")
        return self._exact.get(folded_uri) or (
            self._exact.get(bare) if bare.count("/") == 2 else None
        )


def folded(url: str) -> str:
    """Return *url* with any name of this machine as `localhost`, otherwise unchanged."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return url
    name = f"[{host}]" if host and ":" in host else str(host)
    authority = name if port is None else f"{name}:{port}"
    if host not in LOOPBACK or parts.netloc != authority:
        return url
    # The start is replaced and the rest kept, because building the URL anew would normalise it.
    start = f"{parts.scheme}://{authority}"
    if not url.startswith(start):
        return url
    return f"{parts.scheme}://{authority.replace(name, 'localhost', 1)}{url[len(start) :]}"
