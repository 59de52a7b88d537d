"""The parts of a pack's own table of the configuration, `[packs.NAME]`."""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec


class SettingFault(NamedTuple):
    """A setting of a pack that cannot be used."""

    setting: str
    """Its name within the pack's table."""
    message: str
    hint: str = ""


class CredentialUse(NamedTuple):
    """A `[credentials.NAME]` table with which requests of a pack sign in."""

    setting: str
    """The setting that names it, within the pack's table."""
    name: str
    url: str = ""
    """Where the requests go; empty if only the running pack knows."""


class PackSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of one pack's table; the pack's tools get it by `ctx.settings(ItsType)`."""

    def faults(self) -> Iterator[SettingFault]:
        """Yield what is wrong with the values, beyond their types."""
        yield from ()

    def credential_uses(self) -> Iterator[CredentialUse]:
        """Yield the credentials that the table names, so that `gatepost check` looks at them."""
        yield from ()

    @property
    def makes_packs(self) -> bool:
        """Return whether more packs are made of the table, even if its own pack is off."""
        return False
