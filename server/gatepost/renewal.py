"""What a new configuration means for who is connected: what it loses, and what looks different."""

from collections.abc import Callable, Mapping

from gatepost.settings import STDIO, Config
from gatepost.tools.api import Offer
from gatepost.tools.registry import Registry
from gatepost.tools.surroundings import Listed
from gatepost_authz.caller import TenantContext
from gatepost_authz.issuers import IssuerRegistry

Loses = Callable[[TenantContext], bool]


def known_tenants(config: Config) -> frozenset[str]:
    """Every tenant that some setting names."""
    named = {*config.tenancy.tenants}
    for issuer in config.issuers:
        named.update(issuer.tenants.values())
        if issuer.tenant.value:
            named.add(issuer.tenant.value)
    return frozenset(named)


def told_tenants(config: Config) -> frozenset[str] | None:
    """The tenants that may be labels of numbers; None: none may."""
    return known_tenants(config) if config.telemetry.tenant_label else None


def losers(before: Config, after: Config) -> Loses:
    """
    Tells the callers whose token, shown again, might not give what it gave before.

    An open stream outlives the check of its token, and the token is not kept. Whoever might be
    judged differently now is among them: its client connects anew and is judged.
    """
    if _meaning(before) != _meaning(after):
        return lambda caller: True
    old, new = IssuerRegistry(before.issuers), IssuerRegistry(after.issuers)
    baseline = frozenset(after.scopes.baseline)
    known = None if after.creates_tenants else known_tenants(after)

    def loses(caller: TenantContext) -> bool:
        tenant = caller.tenant_id
        if tenant in after.tenancy.suspended or (known is not None and tenant not in known):
            return True
        return not baseline <= caller.scopes or not _stands(caller, old, new)

    return loses


def outcasts(config: Config, issuers: IssuerRegistry) -> Loses:
    """
    Tells the callers who could not even sign in under this configuration.

    What outlives a request (a task, which may last for hours) and holds no token that could be
    shown again is asked about here: an issuer is removed because it is trusted no more.
    """
    known = None if config.creates_tenants else known_tenants(config)
    suspended = frozenset(config.tenancy.suspended)

    def is_out(caller: TenantContext) -> bool:
        tenant = caller.tenant_id
        if caller.issuer == STDIO:
            return tenant != config.stdio.tenant
        if tenant in suspended or (known is not None and tenant not in known):
            return True
        found = issuers.find(caller.issuer)
        return found is None or tenant in found[0].rules.foreign

    return is_out


def _stands(caller: TenantContext, old: IssuerRegistry, new: IssuerRegistry) -> bool:
    """Whether the caller's issuer is trusted as before, and its tenant is nobody else's now."""
    before, after = old.find(caller.issuer), new.find(caller.issuer)
    if before is None or after is None or before[0].settings != after[0].settings:
        return False
    rules = after[0].rules
    return caller.tenant_id not in rules.foreign and rules.exclusive >= before[0].rules.exclusive


def _meaning(config: Config) -> object:
    """What every token is read by."""
    return config.resource, config.mode, config.scopes.implied


def lists_changed(before: Registry, after: Registry) -> tuple[Listed, ...]:
    """The lists that look different to somebody, or lead to something else."""
    if before.obtainable != after.obtainable:
        return "tools", "prompts", "resources"
    kinds: dict[Listed, Callable[[Registry], tuple[Mapping[str, Offer], ...]]] = {
        "tools": lambda registry: (registry.tools,),
        "prompts": lambda registry: (registry.prompts,),
        "resources": lambda registry: (registry.documents, registry.templates),
    }
    return tuple(what for what, of in kinds.items() if _shown(of(before)) != _shown(of(after)))


# Loaded again, the functions are others, and nobody sees them.
FUNCTIONS = frozenset({"check", "invoke", "template", "lister", "completer"})


def _shown(offers: tuple[Mapping[str, Offer], ...]) -> list[object]:
    return [
        [key, *(getattr(one, name) for name in one.__struct_fields__ if name not in FUNCTIONS)]
        for kind in offers
        for key, one in kind.items()
    ]
