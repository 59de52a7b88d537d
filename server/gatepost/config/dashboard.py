"""Judges whether people can sign in to the dashboard, and decide anything there."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from gatepost.config.references import REFERENCE, UnresolvedReference, resolve
from gatepost.settings import Config
from gatepost_authz.config import TENANT, Issuer, Problem
from gatepost_authz.issuers import IssuerRegistry
from gatepost_authz.presets import PRESETS

ABOUT_PEOPLE = frozenset({"openid", "profile", "email", "offline_access"})
NAME = "/dashboard"


def is_on(config: Config) -> bool:
    """Whether there is a dashboard."""
    chosen = config.dashboard.enabled
    return any(issuer.dashboard for issuer in config.issuers) if chosen is None else chosen


def problems(config: Config) -> Iterator[Problem]:
    """What keeps people out, and what they could not do inside."""
    if not is_on(config):
        return
    clients = [(at, one) for at, one in enumerate(config.issuers) if one.dashboard and one.enabled]
    if not clients:
        yield Problem(
            "config.E090",
            "the dashboard is on, and no issuer has a client for it",
            'dashboard = { client_id = "…", client_secret = "env:…" } in an [[issuers]] table',
            setting="dashboard.enabled",
        )
    elif not any(issuer.roles for _, issuer in clients):
        yield Problem(
            "config.W090",
            "nobody who signs in to the dashboard can have a role there",
            'roles = { approver = { claim = "roles", value = "…" } } in the issuer\'s table',
            "warning",
            "issuers",
        )
    if urlsplit(config.resource).path.endswith(NAME):
        yield Problem(
            "config.E093",
            f"the endpoint cannot be at {NAME}, where the dashboard is",
            "end the resource in another word, for example /mcp",
            setting="resource",
        )
    for at, issuer in clients:
        yield from _client(f"issuers[{at}].dashboard", issuer, config)


def _client(setting: str, issuer: Issuer, config: Config) -> Iterator[Problem]:
    client, preset = issuer.dashboard, PRESETS.get(issuer.preset)
    if client is None or preset is None:
        return
    # That it is a reference at all, the gate's own rules say.
    if REFERENCE.match(client.client_secret):
        try:
            resolve(client.client_secret)
        except UnresolvedReference as error:
            yield Problem(
                "config.E091",
                str(error),
                "set it where the server runs; codes are redeemed with this secret",
                setting=f"{setting}.client_secret",
            )
    if not preset.resource_parameter and {*client.scopes, *config.scopes.baseline} <= ABOUT_PEOPLE:
        yield Problem(
            "config.E092",
            f"{preset.name} finds the resource by a scope, and none of it is asked for",
            'add one, as in scopes = ["openid", "profile", "api://…/dashboard"]',
            setting=f"{setting}.scopes",
        )
    if "{" in issuer.issuer and TENANT not in config.resource and not _concrete(issuer):
        yield Problem(
            "config.E094",
            "nobody can be sent to a templated issuer whose organisations are not named",
            "name them in the issuer's `tenants`, or put {tenant} into `resource`",
            setting=setting,
        )


def _concrete(issuer: Issuer) -> tuple[str, ...]:
    try:
        return IssuerRegistry([issuer]).for_tenant(None)
    except ValueError:
        return (issuer.issuer,)  # what is wrong with it, the gate's own rules say
