"""What the pack `git` can be told: `[packs.git]`."""

import re
from collections.abc import Iterator, Mapping

from gatepost.packs.table import Fault, PackSettings, is_reference

HOST = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}(?::[1-9][0-9]{0,4})?", re.ASCII)
LEAST, MOST = 1_000, 2_000_000


class GitSettings(PackSettings, frozen=True, kw_only=True):
    """The pack's table."""

    credentials: Mapping[str, str] = {}
    """
    Hosts (`host` or `host:port`) and the tenant's secret that git signs in there with over https:
    `{ "gitlab.com" = "secret:GITLAB_TOKEN" }`. The secret is a token, or `user:password`. A tenant
    without that secret signs in nowhere.
    """
    max_output_bytes: int = 200_000
    """How much is kept of what a command prints, of each of its two streams."""

    def faults(self) -> Iterator[Fault]:
        """See `PackSettings`."""
        for host, reference in self.credentials.items():
            if not HOST.fullmatch(host):
                yield Fault(
                    "credentials",
                    f"{host!r} is not a host",
                    "write gitlab.example.com or gitlab.example.com:8443, in lower case",
                )
            if not is_reference(reference):
                # Not shown: somebody may have put the token itself here.
                yield Fault(
                    "credentials",
                    f"what stands for {host!r} is not the name of a tenant's secret",
                    'write "secret:NAME" (A-Z, 0-9 and _), and set it for each tenant',
                )
        if not LEAST <= self.max_output_bytes <= MOST:
            yield Fault("max_output_bytes", f"it is not between {LEAST} and {MOST}")
