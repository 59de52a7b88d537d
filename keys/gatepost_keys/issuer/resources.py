"""Which protected resources a token may be for (RFC 8707); pure."""

import re
from collections.abc import Sequence

from gatepost_keys.issuer.settings import TENANT


class Resources:
    """The configured resources, exact or with `{tenant}` as one path segment."""

    def __init__(self, resources: Sequence[str]) -> None:
        self._exact = frozenset(url for url in resources if "{tenant}" not in url)
        self._templates = [
            re.compile(re.escape(url).replace(r"\{tenant\}", TENANT.pattern), re.ASCII)
            for url in resources
            if "{tenant}" in url
        ]
        single = len(resources) == 1 and bool(self._exact)
        self.default = next(iter(self._exact)) if single else None
        """The resource of a request that names none: the only one there is, else None."""

    def find(self, requested: str) -> str | None:
        """
        The canonical form of *requested*; None when this issuer does not serve it.

        `http://host/` is taken for `http://host`: the TypeScript SDK cannot send it without slash.
        """
        if requested in self._exact or any(known.fullmatch(requested) for known in self._templates):
            return requested
        bare = requested.removesuffix("/")
        return bare if bare in self._exact and bare.count("/") == 2 else None
