"""What the web pack can be told."""

import re
from collections.abc import Iterator

from gatepost.packs.table import Fault, PackSettings

DOMAIN = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_-]{1,63}")
AGENT = re.compile(r"[\x20-\x7e]{1,200}")


class WebSettings(PackSettings, frozen=True, kw_only=True):
    """`[packs.web]`."""

    robots: bool = True
    """Whether pages that a site's robots.txt asks programs to leave alone are left alone."""
    user_agent: str = ""
    """
    How requests name themselves; by default `gatepost/VERSION`. Rules of a robots.txt are looked
    up by the part before the first `/`.
    """
    max_bytes: int = 3_000_000
    """What is read of one page; the rest is not there for the tool, which says so."""
    timeout_s: float = 25.0
    """For one page with all its redirects."""
    allow_domains: tuple[str, ...] = ()
    """The only domains whose pages may be fetched, those below them included; none: all."""
    deny_domains: tuple[str, ...] = ()
    """Domains whose pages may not be fetched, those below them included."""

    def faults(self) -> Iterator[Fault]:
        """See `PackSettings`."""
        for name in ("allow_domains", "deny_domains"):
            for at, domain in enumerate(getattr(self, name)):
                if not DOMAIN.fullmatch(domain):
                    yield Fault(
                        f"{name}[{at}]",
                        f"{domain!r} is not a domain",
                        "lower case, without scheme, port, path or wildcard: `example.com`",
                    )
        if self.user_agent and not AGENT.fullmatch(self.user_agent):
            yield Fault("user_agent", "it cannot be sent in a header", "printable ASCII only")
        if not 1_000 <= self.max_bytes <= 20_000_000:
            yield Fault("max_bytes", "no amount that a page may have", "1_000 to 20_000_000")
        if not 1 <= self.timeout_s <= 300:
            yield Fault("timeout_s", "no time that a caller waits", "1 to 300")
