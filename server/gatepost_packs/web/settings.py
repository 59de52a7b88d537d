"""The settings of the pack `web`."""

import re
from collections.abc import Iterator

from gatepost import PackSettings, SettingFault

DOMAIN = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_-]{1,63}")
AGENT = re.compile(r"[\x20-\x7e]{1,200}")


class WebSettings(PackSettings, frozen=True, kw_only=True):
    """`[packs.web]`."""

    robots: bool = True
    """Whether `web_fetch` respects the robots.txt of sites."""
    user_agent: str = ""
    """
    The `User-Agent` of requests; default: `gatepost/VERSION`. Rules of a robots.txt are looked up
    by the part before the first `/`.
    """
    max_bytes: int = 3_000_000
    """Bytes that are read of one page; the answer says if there was more."""
    timeout_s: float = 25.0
    """Seconds for one page with all its redirects."""
    allow_domains: tuple[str, ...] = ()
    """The only domains, with their subdomains, whose pages may be fetched; empty: all."""
    deny_domains: tuple[str, ...] = ()
    """Domains, with their subdomains, whose pages may not be fetched."""

    def faults(self) -> Iterator[SettingFault]:
        """Yield problems with the values, beyond their types."""
        for name in ("allow_domains", "deny_domains"):
            for at, domain in enumerate(getattr(self, name)):
                if not DOMAIN.fullmatch(domain):
                    yield SettingFault(
                        f"{name}[{at}]",
                        f"{domain!r} is not a domain",
                        "lower case, without scheme, port, path or wildcard: `example.com`",
                    )
        if self.user_agent and not AGENT.fullmatch(self.user_agent):
            yield SettingFault(
                "user_agent", "it cannot be sent in a header", "printable ASCII only"
            )
        if not 1_000 <= self.max_bytes <= 20_000_000:
            yield SettingFault("max_bytes", "no amount that a page may have", "1_000 to 20_000_000")
        if not 1 <= self.timeout_s <= 300:
            yield SettingFault("timeout_s", "no time that a caller waits", "1 to 300")
