"""What the built-in packs can be told, one table each: `[packs.NAME]`."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec


class Fault(NamedTuple):
    """A setting of a pack that cannot be used."""

    setting: str
    """Its name within the pack's table."""
    message: str
    hint: str = ""


class PackSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One pack's table; the pack gets it by `ctx.settings(ItsType)`."""

    def faults(self) -> Iterator[Fault]:
        """What is wrong with the values, beyond their types."""
        yield from ()


class Packs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tables of all packs."""

    def tables(self) -> Iterator[tuple[str, PackSettings]]:
        """Each by its pack's name."""
        for name in self.__struct_fields__:
            yield name, getattr(self, name)

    def by_type(self) -> dict[type[Any], PackSettings]:
        """Each by its type, as packs ask for them."""
        return {type(table): table for _, table in self.tables()}
