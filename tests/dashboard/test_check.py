"""What `gatepost check` says of a dashboard before it is used."""

from typing import Any

import msgspec
import pytest

from gatepost.check.dashboard import is_on, problems
from gatepost.config.dashboard import DashboardSettings
from gatepost.config.settings import Config, ScopesSettings
from gatepost_authz import problems as gate_problems
from gatepost_authz.config import DashboardClient, Issuer, RoleRule, TenantRule
from tests.support.measuring import each

RESOURCE = "https://mcp.example.com/mcp"
ROLES = {"approver": RoleRule(claim="roles", value="approver")}
ENTRA = "https://login.microsoftonline.com/{tid}/v2.0"


def client(**changes: Any) -> DashboardClient:
    usual = DashboardClient(client_id="gatepost", client_secret="file:/etc/hostname")
    return msgspec.structs.replace(usual, **changes)


def issuer(**changes: Any) -> Issuer:
    usual: dict[str, Any] = {
        "issuer": "https://id.example.com",
        "tenant": TenantRule(claim="org_id"),
        "roles": ROLES,
        "dashboard": client(),
    }
    return Issuer(**usual | changes)


def config(*issuers: Issuer, **changes: Any) -> Config:
    return Config(**{"resource": RESOURCE, "issuers": issuers or (issuer(),)} | changes)


ENABLED_DASHBOARD, DISABLED_DASHBOARD = (
    DashboardSettings(enabled=True),
    DashboardSettings(enabled=False),
)
NAMED_TENANTS = {"33333333-3333-3333-3333-333333333333": "acme"}
CONFIG_CASES = [
    ("fine", config(), []),
    ("no client, not wanted", config(issuer(dashboard=None)), []),
    (
        "no client, and wanted",
        config(issuer(dashboard=None), dashboard=ENABLED_DASHBOARD),
        ["config.E090"],
    ),
    ("a client of an issuer that is off", config(issuer(enabled=False)), ["config.E090"]),
    ("turned off", config(issuer(roles={}), dashboard=DISABLED_DASHBOARD), []),
    ("no user has a role", config(issuer(roles={})), ["config.W090"]),
    (
        "a secret that is nowhere",
        config(issuer(dashboard=client(client_secret="env:NOT_SET_ANYWHERE"))),
        ["config.E091"],
    ),
    ("entra without a scope", config(issuer(preset="entra-v2")), ["config.E092"]),
    (
        "entra with a scope",
        config(issuer(preset="entra-v2", dashboard=client(scopes=("api://x/y",)))),
        [],
    ),
    (
        "entra with a scope of every request",
        config(issuer(preset="entra-v2"), scopes=ScopesSettings(baseline=("api://x/y",))),
        [],
    ),
    ("its own place", config(resource="https://mcp.example.com/dashboard"), ["config.E093"]),
    (
        "a template that nothing fills",
        config(issuer(issuer=ENTRA, preset="entra-v2", dashboard=client(scopes=("api://x/y",)))),
        ["config.E094"],
    ),
    (
        "a template with named organisations",
        config(
            issuer(
                issuer=ENTRA,
                preset="entra-v2",
                dashboard=client(scopes=("api://x/y",)),
                tenant=TenantRule(issuer=True),
                tenants=NAMED_TENANTS,
            )
        ),
        [],
    ),
    (
        "a template that the path fills",
        config(
            issuer(issuer=ENTRA, preset="entra-v2", dashboard=client(scopes=("api://x/y",))),
            resource="https://mcp.example.com/t/{tenant}/mcp",
        ),
        [],
    ),
]


@each(("name", "settings", "ids"), CONFIG_CASES, ids=[case[0] for case in CONFIG_CASES])
def test_each_dashboard_error_has_its_own_id(name: str, settings: Config, ids: list[str]) -> None:
    """Valid settings have no problem."""
    assert [problem.id for problem in problems(settings)] == ids


def test_a_dashboard_client_enables_the_dashboard() -> None:
    """The configuration can turn it off; without a client there is no dashboard."""
    without = config(issuer(dashboard=None))

    assert [is_on(settings) for settings in (config(), without)] == [True, False]
    assert not is_on(config(dashboard=DISABLED_DASHBOARD))


GATE = [
    (client(client_secret="hunter2hunter2"), "authz.E022"),
    (client(client_id=""), "authz.E028"),
    (client(scopes=("a b",)), "authz.E027"),
    (client(token_endpoint="http://id.example.com/token"), "authz.E002"),
    (client(authorization_endpoint="id.example.com"), "authz.E001"),
]


@pytest.mark.parametrize(("invalid_client", "id_"), GATE, ids=[case[1] for case in GATE])
def test_the_dashboard_client_is_checked_with_its_issuer(
    invalid_client: DashboardClient, id_: str
) -> None:
    """Literal secrets, plain http endpoints and invalid scopes are problems."""
    reported_problems = [
        problem
        for problem in gate_problems(
            resource=RESOURCE, issuers=[issuer(dashboard=invalid_client)], create_on_first_use=True
        )
        if problem.setting.startswith("issuers[0].dashboard")
    ]

    assert [problem.id for problem in reported_problems] == [id_]
    assert "hunter2" not in str(reported_problems)
