"""The settings of the pack `git`: `[packs.git]`."""

import re
from collections.abc import Iterator, Mapping

from gatepost import PackSettings, SettingFault, is_reference

HOST = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}(?::[1-9][0-9]{0,4})?", re.ASCII)
MIN_OUTPUT_BYTES, MAX_OUTPUT_BYTES = 1_000, 2_000_000


class GitSettings(PackSettings, frozen=True, kw_only=True):
    """`[packs.git]`."""

    credentials: Mapping[str, str] = {}
    """
    Hosts (`host` or `host:port`), each with the tenant's secret that git signs in with over https:
    `{ "gitlab.com" = "secret:GITLAB_TOKEN" }`. The secret is a token, or `user:password`. A tenant
    without the secret gets no sign-in.
    """
    max_output_bytes: int = 200_000
    """Bytes that are kept of a command's output, for each of its two streams."""

    def faults(self) -> Iterator[SettingFault]:
        """Yield problems with the values, beyond their types."""
        for host, reference in self.credentials.items():
            if not HOST.fullmatch(host):
                yield SettingFault(
                    "credentials",
                    f"{host!r} is not a host",
                    "write gitlab.example.com or gitlab.example.com:8443, in lower case",
                )
            if not is_reference(reference):
                # Not shown: it may be the token itself.
                yield SettingFault(
                    "credentials",
                    f"the value for {host!r} is not the name of a tenant's secret",
                    'write "secret:NAME" (A-Z, 0-9 and _), and set it for each tenant',
                )
        if not MIN_OUTPUT_BYTES <= self.max_output_bytes <= MAX_OUTPUT_BYTES:
            yield SettingFault(
                "max_output_bytes",
                f"it is not between {MIN_OUTPUT_BYTES} and {MAX_OUTPUT_BYTES}",
            )
