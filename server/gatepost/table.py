"""What every table of the configuration is made of."""

import msgspec


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of the configuration file; a key that it has no field for is refused."""
