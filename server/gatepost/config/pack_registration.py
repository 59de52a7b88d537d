"""The packs that installed distributions register by name, Gatepost's own among them."""

import importlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import msgspec

from gatepost.config.pack_settings import PackSettings

GROUP = "gatepost.packs"
"""The group of entry points; the object of each is a mapping of names to registrations."""
OWN_DISTRIBUTION = "gatepost"
"""The distribution whose packs come first, so that no other one can take their names."""

NAME = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)

# What an author's module raises while it loads, which is anything, `sys.exit()` included; each
# becomes a sentence that names the source.
LOADING_ERRORS = (Exception, SystemExit)


class PackRegistration(msgspec.Struct, frozen=True):
    """
    How a distribution registers a pack.

    Everything is named by text (`acme.tools`, `acme.settings:AcmeSettings`), so that a pack that
    is off is never imported.
    """

    source: str
    """The module that defines the pack."""
    extra: str | None = None
    """The extra of the distribution that installs what the pack needs."""
    settings: str = ""
    """The type of the pack's table, a PackSettings, as `module:Type`; empty: it has no table."""
    problems: str = ""
    """
    What `gatepost check` looks at if the pack is enabled, as `module:function`: it is called with
    the pack's settings and the Network, and yields a Problem for what the machine lacks.
    """
    maker: str = ""
    """
    The module whose function `packs_from(settings, fetch)` makes more packs of the pack's table;
    a SettingFault in its answer says why one cannot be made. `fetch(url)` returns bytes.
    """
    in_code: str = ""
    """
    The module whose functions `pack_of_description` and `pack_of_app` make the packs of
    `Pack.from_openapi` and `Pack.from_fastapi`; the first registration that has one is used.
    """
    in_development: bool = False
    """Whether `gatepost dev` enables the pack without a setting."""
    stores_files: bool = True
    """Whether tools use workspaces; if no enabled pack does, a server needs no folder for them."""
    scripts: str = ""
    """
    Code that administrators approve, as `module:function`: it is called with the pack's settings
    and a tenant's workspace, and returns a ScriptSource for `gatepost scripts`.
    """


class RegisteredPack(msgspec.Struct, frozen=True):
    """A registration, with what was loaded of it."""

    registration: PackRegistration
    distribution: str
    settings: type[PackSettings] | None


class RegistrationFault(msgspec.Struct, frozen=True):
    """Why a registration cannot be used."""

    distribution: str
    message: str


class Registrations(msgspec.Struct, frozen=True):
    """All usable registrations by pack, and the faults of the others."""

    packs: Mapping[str, RegisteredPack]
    faults: tuple[RegistrationFault, ...]


@cache
def registrations() -> Registrations:
    """Return what the installed distributions register; it is read once per process."""
    packs: dict[str, RegisteredPack] = {}
    faults: list[RegistrationFault] = []
    for entry_point in sorted(entry_points(group=GROUP), key=_order):
        distribution = _distribution(entry_point)
        try:
            packs_found = dict(_packs_of(entry_point, distribution))
        except LOADING_ERRORS as error:
            faults.append(RegistrationFault(distribution, f"{type(error).__name__}: {error}"))
            continue
        for name, pack in packs_found.items():
            if name in packs:
                owner = packs[name].distribution
                message = f"the pack {name!r} is already registered by {owner}"
                faults.append(RegistrationFault(distribution, message))
            else:
                packs[name] = pack
    if not any(pack.distribution == OWN_DISTRIBUTION for pack in packs.values()):
        message = "the entry points of its packs are missing"
        faults.append(RegistrationFault(OWN_DISTRIBUTION, message))
    return Registrations(packs, tuple(faults))


def built_in_packs() -> frozenset[str]:
    """Return the names of the packs that ship with Gatepost."""
    packs = registrations().packs.items()
    return frozenset(name for name, pack in packs if pack.distribution == OWN_DISTRIBUTION)


def object_at(reference: str) -> Any:
    """Return what `module:name` names."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def _packs_of(entry_point: EntryPoint, distribution: str) -> Iterator[tuple[str, RegisteredPack]]:
    for name, registration in entry_point.load().items():
        if not isinstance(name, str) or not isinstance(registration, PackRegistration):
            raise TypeError(f"{entry_point.value} must map names to PackRegistration")
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a name for a pack")
        settings = object_at(registration.settings) if registration.settings else None
        if settings is not None:
            if not (isinstance(settings, type) and issubclass(settings, PackSettings)):
                raise TypeError(f"{registration.settings} is not a PackSettings")
            settings()  # without a table, the defaults of all its settings apply
        yield name, RegisteredPack(registration, distribution, settings)


def _order(entry_point: EntryPoint) -> tuple[bool, str, str]:
    distribution = _distribution(entry_point)
    return distribution != OWN_DISTRIBUTION, distribution, entry_point.name


def _distribution(entry_point: EntryPoint) -> str:
    return entry_point.dist.name if entry_point.dist is not None else entry_point.value
