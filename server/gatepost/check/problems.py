"""Check a readable configuration and report every problem with a stable id and a hint."""

import difflib
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from urllib.parse import urlsplit

from gatepost.check import (
    approvals,
    audit,
    dashboard,
    exposure,
    file_permissions,
    limits,
    listen,
    numbers,
    paths,
    stdio,
    storage,
    telemetry,
)
from gatepost.check.pack_loading import LoadedPacks
from gatepost.config.pack_registration import object_at, registrations
from gatepost.config.packs import tables
from gatepost.config.references import REFERENCE, UnresolvedReference, resolve
from gatepost.config.settings import Config
from gatepost.secrets.keyring import KeyRing, KeyRingError
from gatepost.tools.offers.tenant_offers import is_upstream_name
from gatepost_authz.check import problems as authz_problems
from gatepost_authz.client_authentication import reference_of, signing_key
from gatepost_authz.config import TENANT_ID, Issuer, Problem
from gatepost_authz.tenant import client_tenants

RESERVED_PATHS = frozenset({"/health", "/readyz", "/openapi.json", "/favicon.ico"})


def problems(config: Config, loaded_packs: LoadedPacks) -> Iterator[Problem]:
    """Yield every problem of the configuration, errors and warnings."""
    obtainable = config.scopes.obtainable
    scopes = {
        "scopes.baseline": config.scopes.baseline,
        "scopes.request": config.scopes.request,
        "scopes.obtainable": () if obtainable is None else obtainable,
        **{
            f"scopes.implied.{name}": (name, *names)
            for name, names in config.scopes.implied.items()
        },
    }
    yield from authz_problems(
        resource=config.resource,
        issuers=config.issuers,
        development=config.development,
        tenants=config.tenancy.tenants,
        create_on_first_use=config.creates_tenants,
        scopes=scopes,
    )
    yield from _resource(config)
    yield from _keys(config, loaded_packs)
    yield from _secrets(config)
    yield from paths.problems(config)
    yield from storage.problems(config)
    yield from listen.problems(config)
    yield from _tenancy(config)
    yield from loaded_packs.problems
    yield from _packs(config)
    yield from stdio.problems(config)
    yield from dashboard.problems(config)
    yield from telemetry.problems(config)
    yield from _tools(config, loaded_packs)
    if config.has_upstreams or config.credentials:
        # Imported here, because other configurations do not load the code for upstreams.
        yield from import_module("gatepost.check.credentials").problems(config)
        yield from import_module("gatepost.check.upstreams").problems(config, loaded_packs)
    yield from approvals.problems(config, loaded_packs)
    yield from numbers.problems(config)
    yield from limits.problems(config, loaded_packs)
    yield from audit.problems(config)
    yield from exposure.problems(config, loaded_packs)
    yield from file_permissions.problems(config)


def _packs(config: Config) -> Iterator[Problem]:
    for name, table in tables(config.packs):
        for fault in table.faults():
            setting = f"packs.{name}.{fault.setting}"
            yield Problem("config.E060", fault.message, fault.hint, setting=setting)
        if any(table.credential_uses()):
            # Imported here, as in `problems`.
            uses = import_module("gatepost.check.credentials").pack_problems
            yield from uses(config, name, table)
    registered = registrations().packs
    for name in config.tools.packs:
        if name in registered and registered[name].registration.problems:
            check = object_at(registered[name].registration.problems)
            yield from check(getattr(config.packs, name, None), config.network)


def _resource(config: Config) -> Iterator[Problem]:
    path = urlsplit(config.resource).path
    if path in RESERVED_PATHS or path.endswith("/tools"):
        yield Problem(
            "config.E040",
            f"the endpoint cannot be at {path}, because another route uses this path",
            "use another path, for example /mcp",
            setting="resource",
        )


def _keys(config: Config, loaded_packs: LoadedPacks) -> Iterator[Problem]:
    ring = config.keys.ring
    if not ring:
        if not config.development:
            yield Problem(
                "config.E006",
                "there is no key ring, so sessions do not survive a restart",
                'run `gatepost keyring new keyring.json` and set [keys] ring = "file:keyring.json"',
                setting="keys.ring",
            )
        elif any(offer.secret_arguments for offer in loaded_packs.offers):
            yield Problem(
                "config.W005",
                "tools use secrets, but there is no key ring to encrypt stored secrets",
                'run `gatepost keyring new keyring.json` and set [keys] ring = "file:keyring.json"',
                "warning",
                "keys.ring",
            )
        return
    if not REFERENCE.match(ring):
        # The value is not shown, because it may be the secret itself.
        yield Problem(
            "config.E005",
            "`keys.ring` holds a value instead of a reference",
            'write ring = "file:keyring.json", or "env:NAME" for a variable with its content',
            setting="keys.ring",
        )
        return
    try:
        KeyRing.load(ring, group_read=config.keys.group_read)
    except KeyRingError as error:
        yield Problem("config.E007", str(error), setting="keys.ring")


def _secrets(config: Config) -> Iterator[Problem]:
    for at, issuer in enumerate(config.issuers):
        introspection = issuer.introspection
        # The gate's rules report a value that is not a reference.
        if introspection is not None and REFERENCE.match(reference_of(introspection)):
            by_key = introspection.method == "private_key_jwt"
            setting = f"issuers[{at}].introspection.{'private_key' if by_key else 'client_secret'}"
            try:
                secret = resolve(reference_of(introspection))
                if by_key:
                    signing_key(secret)
            except (UnresolvedReference, ValueError) as error:
                yield Problem(
                    "config.E020",
                    str(error),
                    "set it where the server runs; token introspection needs this secret",
                    setting=setting,
                )


def _tenancy(config: Config) -> Iterator[Problem]:
    tenants = {
        *config.tenancy.tenants,
        *(name for issuer in config.issuers for name in _tenants_of(issuer)),
    }
    for at, tenant in enumerate(config.tenancy.suspended):
        setting = f"tenancy.suspended[{at}]"
        if not TENANT_ID.fullmatch(tenant):
            yield Problem(
                "config.E018",
                f"{tenant!r} is not a tenant id",
                "use at most 63 characters of a-z, 0-9, _ and -, starting with a letter or digit",
                setting=setting,
            )
        elif not config.creates_tenants and tenant not in tenants:
            yield Problem(
                "config.W001",
                f"the suspended tenant {tenant!r} is not configured",
                _nearest(tenant, tenants),
                "warning",
                setting,
            )


def _tenants_of(issuer: Issuer) -> set[str]:
    values = filter(None, [issuer.tenant.value])
    return {*issuer.tenants.values(), *values} | client_tenants(issuer)


def _tools(config: Config, loaded_packs: LoadedPacks) -> Iterator[Problem]:
    if not loaded_packs.offers:
        yield Problem(
            "config.W003",
            "no tool, resource or prompt is enabled",
            "add files to tools.load or built-in packs to tools.packs",
            "warning",
            "tools",
        )
    for offer in loaded_packs.offers:
        if offer.kind in {"tool", "prompt"} and is_upstream_name(offer.name):
            yield Problem(
                "config.E151",
                f"the {offer.kind} {offer.name!r} has a name that only MCP servers behind this "
                "gate have",
                "rename it: mcp_NAME__TOOL is the name of the tool TOOL of the server NAME",
                setting="tools",
            )
    for scope in config.scopes.obtainable or ():
        if loaded_packs.offers and scope not in loaded_packs.declared_scopes:
            yield Problem(
                "config.W002",
                f"no enabled tool, resource or prompt needs the obtainable scope {scope!r}",
                _nearest(scope, loaded_packs.declared_scopes),
                "warning",
                "scopes.obtainable",
            )
    root = Path(config.workspace.root)
    if root.exists() and not root.is_dir():
        yield Problem(
            "config.E019",
            f"{root} is not a folder",
            "name a folder for the tenants' files",
            setting="workspace.root",
        )


def _nearest(name: str, names: set[str] | frozenset[str]) -> str:
    similar = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {similar[0]!r}?" if similar else ""


def lines_about(problems: Iterable[Problem]) -> list[str]:
    """Return one paragraph for each problem, errors first; a hint is an indented line."""
    lines = []
    for problem in sorted(problems, key=lambda problem: problem.level != "error"):
        setting = f" [{problem.setting}]" if problem.setting else ""
        lines.append(f"{problem.level} {problem.id}{setting}: {problem.message}")
        if problem.hint:
            lines.append(f"    {problem.hint}")
    return lines
