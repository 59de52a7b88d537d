"""Apply a reload to connected callers: lost access and changed lists."""

from collections.abc import Callable, Mapping
from operator import attrgetter

from gatepost.config.settings import STDIO, Config
from gatepost.tools.calls.registry import Registry
from gatepost.tools.context.interfaces import ListName
from gatepost.tools.offers.offer import Offer
from gatepost_authz.caller import TenantContext
from gatepost_authz.issuers import IssuerRegistry
from gatepost_authz.tenant import client_tenants, reaches

IsAffected = Callable[[TenantContext], bool]

TABLES_OF_START = ("listen", "log", "network", "storage", "telemetry", "workspace")
SETTINGS_OF_START = ("limits.failures_per_second", "limits.header_timeout_s")
"""The tables and settings that a process takes from the configuration of its start."""
RELOADED = frozenset({"listen.allowed_origins", "listen.trusted_proxies", "network.allow_hosts"})
"""The settings of these tables that take effect on reload."""
CERTIFICATE = frozenset({"listen.tls_certificate", "listen.tls_key"})
"""Take effect on reload too, unless they turn TLS on or off."""


def known_tenants(config: Config) -> frozenset[str]:
    """Return all tenants that the configuration names."""
    tenants = {*config.tenancy.tenants}
    for issuer in config.issuers:
        tenants |= {*issuer.tenants.values()} | client_tenants(issuer)
        if issuer.tenant.value:
            tenants.add(issuer.tenant.value)
    return frozenset(tenants)


def settings_without_effect(started: Config, reloaded: Config) -> tuple[str, ...]:
    """Return the settings that differ from those of the start and take effect at a restart only."""
    names = [
        f"{table}.{name}"
        for table in TABLES_OF_START
        for name in getattr(started, table).__struct_fields__
    ]
    changed = {
        name
        for name in (*names, *SETTINGS_OF_START)
        if (value := attrgetter(name))(started) != value(reloaded)
    }
    if bool(started.listen.tls_key) == bool(reloaded.listen.tls_key):
        changed -= CERTIFICATE
    return tuple(sorted(changed - RELOADED))


def tenant_labels(config: Config) -> frozenset[str] | None:
    """Return the tenants that may be metric labels; None if there is no tenant label."""
    return known_tenants(config) if config.telemetry.tenant_label else None


def affected_callers(before: Config, after: Config) -> IsAffected:
    """
    Return a predicate for callers whose token might now be judged differently.

    An open stream outlives the check of its token, and the token is not stored. So the streams of
    these callers are ended, and their clients have to reconnect and authenticate again.
    """
    if _meaning(before) != _meaning(after):
        return lambda caller: True
    old, new = IssuerRegistry(before.issuers), IssuerRegistry(after.issuers)
    baseline = frozenset(after.scopes.baseline)
    tenants = None if after.creates_tenants else known_tenants(after)

    def loses(caller: TenantContext) -> bool:
        tenant = caller.tenant_id
        if tenant in after.tenancy.suspended or (tenants is not None and tenant not in tenants):
            return True
        return not baseline <= caller.scopes or not _keeps_access(caller, old, new)

    return loses


def revoked_callers(config: Config, issuers: IssuerRegistry) -> IsAffected:
    """
    Return a predicate for callers who could no longer sign in under this configuration.

    Tasks may run for hours and hold no token that could be checked again. They are checked here,
    for example when an issuer is removed because it is no longer trusted.
    """
    tenants = None if config.creates_tenants else known_tenants(config)
    suspended = frozenset(config.tenancy.suspended)

    def is_out(caller: TenantContext) -> bool:
        tenant = caller.tenant_id
        if caller.issuer == STDIO:
            return tenant != config.stdio.tenant
        if tenant in suspended or (tenants is not None and tenant not in tenants):
            return True
        trusted = issuers.find(caller.issuer)
        return trusted is None or not reaches(tenant, trusted[0].rules)

    return is_out


def _keeps_access(caller: TenantContext, old: IssuerRegistry, new: IssuerRegistry) -> bool:
    """Return whether the caller's issuer and its right to the tenant are unchanged."""
    before, after = old.find(caller.issuer), new.find(caller.issuer)
    if before is None or after is None or before[0].settings != after[0].settings:
        return False
    rules = after[0].rules
    return reaches(caller.tenant_id, rules) and rules.exclusive >= before[0].rules.exclusive


def _meaning(config: Config) -> object:
    """Return the settings that affect every token."""
    return config.resource, config.mode, config.scopes.implied


def lists_changed(before: Registry, after: Registry) -> tuple[ListName, ...]:
    """Return the lists that changed for any caller."""
    if before.obtainable != after.obtainable:
        return "tools", "prompts", "resources"
    kinds: dict[ListName, Callable[[Registry], tuple[Mapping[str, Offer], ...]]] = {
        "tools": lambda registry: (registry.tools,),
        "prompts": lambda registry: (registry.prompts,),
        "resources": lambda registry: (registry.documents, registry.templates),
    }
    return tuple(
        list_name
        for list_name, of in kinds.items()
        if _visible_fields(of(before)) != _visible_fields(of(after))
    )


# A reload creates new function objects, which callers do not see.
FUNCTIONS = frozenset({"check", "invoke", "template", "lister", "completer"})


def _visible_fields(offers: tuple[Mapping[str, Offer], ...]) -> list[object]:
    return [
        [key, *(getattr(offer, name) for name in offer.__struct_fields__ if name not in FUNCTIONS)]
        for kind in offers
        for key, offer in kind.items()
    ]
