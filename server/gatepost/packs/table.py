"""What a pack's own table of the configuration is made of; `settings` holds them all."""

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from gatepost.secrets.grammar import NAME

REFERENCE = "secret:"
ENTRY = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,62}[A-Za-z0-9_])?", re.ASCII)
"""What an entry of a table (a channel, a calendar) may be called."""


class Fault(NamedTuple):
    """A setting of a pack that cannot be used."""

    setting: str
    """Its name within the pack's table."""
    message: str
    hint: str = ""


def is_reference(text: str) -> bool:
    """Whether a setting names one of the tenant's secrets, by a name that one can have."""
    return text.startswith(REFERENCE) and bool(NAME.fullmatch(text.removeprefix(REFERENCE)))


class PackSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One pack's table; the pack gets it by `ctx.settings(ItsType)`."""

    def faults(self) -> Iterator[Fault]:
        """What is wrong with the values, beyond their types."""
        yield from ()

    @property
    def makes_packs(self) -> bool:
        """Whether there are packs to be made of the table, also while its own pack is off."""
        return False
