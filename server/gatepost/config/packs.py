"""The tables of all registered packs, `[packs.NAME]`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from gatepost.config.pack_registration import registrations
from gatepost.config.pack_settings import PackSettings
from gatepost_authz.config import Network


class PackTables(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of `Packs`, which has a field for each registered pack with a table."""


def tables(packs: PackTables) -> Iterator[tuple[str, PackSettings]]:
    """Yield each table with the name of its pack."""
    for name in packs.__struct_fields__:
        yield name, getattr(packs, name)


def by_type(packs: PackTables, network: Network) -> dict[type[Any], Any]:
    """Return all that `ctx.settings` finds, by its type: the tables of packs, and `[network]`."""
    return {Network: network} | {type(table): table for _, table in tables(packs)}


if TYPE_CHECKING:
    Packs = PackTables
else:
    Packs = msgspec.defstruct(
        "Packs",
        [
            (name, pack.settings, pack.settings())
            for name, pack in registrations().packs.items()
            if pack.settings is not None
        ],
        bases=(PackTables,),
        module=__name__,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )
