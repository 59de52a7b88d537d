"""The base class of all configuration tables."""

import msgspec


class SettingsTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of the configuration file; unknown keys are refused."""
