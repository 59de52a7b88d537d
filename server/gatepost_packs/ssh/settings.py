"""The settings of the pack `ssh`: `[packs.ssh]`."""

import base64
import binascii
import re
from collections.abc import Iterator

from gatepost import PackSettings, SettingFault

OFFICIAL = (
    "gitlab.com ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAfuCHKVTjquxvt6CM6tdG4SLp1Btn/nOeHHE5UOzRdf",
    "github.com ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl",
)
"""The hosts' own keys, as their operators publish them."""

LINE = re.compile(
    r"(?P<hosts>[A-Za-z0-9.,:\[\]-]+) "
    r"(?P<type>ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)) "
    r"(?P<key>[A-Za-z0-9+/]+={0,2})(?: [ -~]*)?",
    re.ASCII,
)
"""A line of `known_hosts` (sshd(8)) without hashed names, wildcards and markers."""


class SshSettings(PackSettings, frozen=True, kw_only=True):
    """`[packs.ssh]`."""

    known_hosts: tuple[str, ...] = ()
    """
    Further hosts that git may reach over SSH, each with its key, as lines of a `known_hosts` file:
    `"git.example.com ssh-ed25519 AAAA…"`, `"[git.example.com]:2222 ssh-ed25519 AAAA…"`. The keys of
    gitlab.com and github.com are built in; a host without a key is refused.
    """

    def faults(self) -> Iterator[SettingFault]:
        """Yield problems with the values, beyond their types."""
        for at, line in enumerate(self.known_hosts):
            if not _is_key(line):
                yield SettingFault(
                    f"known_hosts[{at}]",
                    "it is not a host with its key",
                    "write it as `ssh-keyscan` prints it: host, type of the key, key",
                )

    @property
    def lines(self) -> tuple[str, ...]:
        """Return all known host keys."""
        return (*OFFICIAL, *self.known_hosts)


def _is_key(line: str) -> bool:
    match = LINE.fullmatch(line)
    if match is None:
        return False
    try:
        key = base64.b64decode(match["key"], validate=True)
    except binascii.Error:
        return False
    name = match["type"].encode()
    return key.startswith(len(name).to_bytes(4, "big") + name)
