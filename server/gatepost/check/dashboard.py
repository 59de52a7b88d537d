"""Check whether people can sign in to the dashboard and decide requests there."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from gatepost.config.references import REFERENCE, UnresolvedReference, resolve
from gatepost.config.settings import Config
from gatepost_authz.config import Issuer, Problem
from gatepost_authz.issuers import IssuerRegistry
from gatepost_authz.presets import PRESETS
from gatepost_authz.protected_resource import TENANT

ABOUT_PEOPLE = frozenset({"openid", "profile", "email", "offline_access"})
NAME = "/dashboard"


def is_on(config: Config) -> bool:
    """Return whether the dashboard is enabled."""
    chosen = config.dashboard.enabled
    return any(issuer.dashboard for issuer in config.issuers) if chosen is None else chosen


def problems(config: Config) -> Iterator[Problem]:
    """Yield the problems of the dashboard's sign-in."""
    if not is_on(config):
        return
    clients = [
        (at, issuer)
        for at, issuer in enumerate(config.issuers)
        if issuer.dashboard and issuer.enabled
    ]
    if not clients:
        yield Problem(
            "config.E090",
            "the dashboard is enabled, but no issuer has a `dashboard` client",
            'add dashboard = { client_id = "…", client_secret = "env:…" } to an [[issuers]] table',
            setting="dashboard.enabled",
        )
    elif not any(issuer.roles for _, issuer in clients):
        yield Problem(
            "config.W090",
            "no issuer with dashboard sign-in maps any roles, so no person can approve",
            'add roles = { approver = { claim = "roles", value = "…" } } to the issuer\'s table',
            "warning",
            "issuers",
        )
    if urlsplit(config.resource).path.endswith(NAME):
        yield Problem(
            "config.E093",
            f"the endpoint cannot be at {NAME}, because the dashboard is there",
            "use another path, for example /mcp",
            setting="resource",
        )
    for at, issuer in clients:
        yield from _client(f"issuers[{at}].dashboard", issuer, config)


def _client(setting: str, issuer: Issuer, config: Config) -> Iterator[Problem]:
    client, preset = issuer.dashboard, PRESETS.get(issuer.preset)
    if client is None or preset is None:
        return
    # The gate's rules report a value that is not a reference.
    if REFERENCE.match(client.client_secret):
        try:
            resolve(client.client_secret)
        except UnresolvedReference as error:
            yield Problem(
                "config.E091",
                str(error),
                "set it where the server runs; the sign-in needs this client secret",
                setting=f"{setting}.client_secret",
            )
    if not preset.resource_parameter and {*client.scopes, *config.scopes.named} <= ABOUT_PEOPLE:
        yield Problem(
            "config.E092",
            f"{preset.name} selects the resource by scope, but no scope of the resource is set",
            'add a scope of the resource: scopes = ["openid", "profile", "api://…/dashboard"]',
            setting=f"{setting}.scopes",
        )
    if "{" in issuer.issuer and TENANT not in config.resource and not _concrete(issuer):
        yield Problem(
            "config.E094",
            "dashboard sign-in does not work with a templated issuer without named organisations",
            "name them in the issuer's `tenants`, or put {tenant} into `resource`",
            setting=setting,
        )


def _concrete(issuer: Issuer) -> tuple[str, ...]:
    try:
        return IssuerRegistry([issuer]).for_tenant(None)
    except ValueError:
        return (issuer.issuer,)  # the gate's own rules report the problem
