"""The clients and settings that fit the identity provider that the issuer imitates."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from gatepost.config.settings import Config, ScopesSettings
from gatepost.dev.upstreams import ADMIN_SCOPE
from gatepost_authz.config import DashboardClient, Introspection, Issuer, RoleRule, TenantRule
from gatepost_authz.presets import PRESETS
from gatepost_keys.imitation import DEVELOPMENT, Imitation
from gatepost_keys.imitation.facts import api_of, org_of, spelled
from gatepost_keys.issuer.settings import DEFAULT_USERS, MOUNT, IssuerSettings, StaticClient

DASHBOARD_CLIENT = "gatepost-dashboard"
APP_CLIENT = "gatepost-app"
MACHINE_CLIENT = "gatepost-machine"
API_CLIENT = "gatepost-api"
SECRET_FILES = {
    DASHBOARD_CLIENT: "dashboard.secret",
    APP_CLIENT: "app.secret",
    MACHINE_CLIENT: "machine.secret",
    API_CLIENT: "api.secret",
}
"""The clients that exist from the start, with the files of their secrets."""
REDIRECTS = (
    "http://localhost:8123/callback",
    "http://127.0.0.1:8123/callback",
    "http://localhost:6274/oauth/callback",
    "http://127.0.0.1:33418/",
    "https://vscode.dev/redirect",
)
"""The redirect URIs of MCP clients; on this computer the port may be any."""
MACHINE_TENANT = DEFAULT_USERS[0].tenant


def client_id(imitation: Imitation, name: str) -> str:
    """Return the id of the client *name* in the provider's spelling."""
    return spelled(imitation.client, "client", name)


def static_clients(
    resource: str, imitation: Imitation, secrets: Mapping[str, str]
) -> tuple[StaticClient, ...]:
    """Return the clients that exist from the start, with their *secrets* by name."""
    dashboard = StaticClient(
        client_id=client_id(imitation, DASHBOARD_CLIENT),
        secret=secrets.get(DASHBOARD_CLIENT, ""),
        name="The Gatepost dashboard",
        redirect_uris=(f"{resource.removesuffix('/mcp')}/dashboard/callback",),
    )
    if imitation == DEVELOPMENT:
        return (dashboard,)
    app = StaticClient(
        client_id=client_id(imitation, APP_CLIENT),
        secret="" if imitation.public_clients else secrets.get(APP_CLIENT, ""),
        public=imitation.public_clients,
        name="Your MCP client",
        redirect_uris=REDIRECTS,
        refreshes=True,
    )
    machine = StaticClient(
        client_id=client_id(imitation, MACHINE_CLIENT),
        secret=secrets.get(MACHINE_CLIENT, ""),
        name="A program",
        tenant=MACHINE_TENANT,
    )
    api = StaticClient(
        client_id=client_id(imitation, API_CLIENT),
        secret=secrets.get(API_CLIENT, ""),
        name="Gatepost",
        introspects=True,
    )
    return (dashboard, app, machine, api)


def issuer_table(resource: str, state: Path, imitation: Imitation, *, opaque: bool) -> Issuer:
    """Return the `[[issuers]]` table that an operator writes for the imitated provider."""
    base = f"{resource.removesuffix('/mcp')}{MOUNT}"
    claim, api = imitation.tenant_claim, api_of(imitation, resource)
    tenants = dict.fromkeys(person.tenant for person in DEFAULT_USERS)
    maps_tenants = imitation != DEVELOPMENT and bool(claim)
    preset = "generic" if imitation == DEVELOPMENT else imitation.name
    dashboard = DashboardClient(
        client_id=client_id(imitation, DASHBOARD_CLIENT),
        client_secret=secret_file(state, DASHBOARD_CLIENT),
    )
    own_claim = claim if claim != PRESETS[preset].tenant_claim else ""
    return Issuer(
        issuer=base + imitation.issuer.replace("{org}", f"{{{claim}}}"),
        preset=preset,
        audiences=tuple(audiences_of(imitation, api)),
        tenant=TenantRule(claim=own_claim, value="" if claim else MACHINE_TENANT),
        tenants={org_of(imitation, tenant): tenant for tenant in tenants} if maps_tenants else {},
        roles=roles_of(imitation),
        introspection=introspection_of(base, state, imitation, opaque=opaque),
        dashboard=msgspec.structs.replace(
            dashboard, scopes=(*dashboard.scopes, *sign_in_scopes(imitation, api))
        ),
    )


def roles_of(imitation: Imitation) -> dict[str, RoleRule]:
    """Return the roles of people; the issuers of a template cannot make a person an operator."""
    if not imitation.roles_claim:
        return {}
    names = ("approver", "admin") if "{" in imitation.issuer else ("approver", "admin", "operator")
    return {name: RoleRule(claim=imitation.roles_claim, value=name) for name in names}


def sign_in_scopes(imitation: Imitation, api: str) -> tuple[str, ...]:
    """Return the scopes that every client has to ask for at this provider."""
    return tuple(scope.format(api=api) for scope in imitation.sign_in_scopes)


def audiences_of(imitation: Imitation, api: str) -> Iterator[str]:
    """Yield the audiences that the provider's tokens have instead of the resource."""
    for audience in imitation.audiences:
        if audience != "{clients}":
            yield audience.format(api=api)
            continue
        names = [DASHBOARD_CLIENT, APP_CLIENT, *([MACHINE_CLIENT] if imitation.machine else [])]
        yield from (client_id(imitation, name) for name in names)


def introspection_of(
    base: str, state: Path, imitation: Imitation, *, opaque: bool
) -> Introspection | None:
    """Return how opaque tokens are asked about; None if none are used."""
    if not opaque:
        return None
    endpoint = base + imitation.endpoints["introspection"] if imitation.tokeninfo else ""
    return Introspection(
        client_id=client_id(imitation, API_CLIENT),
        client_secret=secret_file(state, API_CLIENT),
        endpoint=endpoint,
    )


def secret_file(state: Path, name: str) -> str:
    """Return the reference to the secret of the client *name*."""
    return f"file:{(state / SECRET_FILES[name]).resolve()}"


def scopes_of(issuer: IssuerSettings) -> ScopesSettings:
    """Return the `[scopes]` table: it translates the provider's scopes into those of the tools."""
    shape, tools = issuer.imitation, issuer.scopes
    if shape.api_scopes:
        first = shape.api_scopes[0] if shape.scope_short else issuer.offered[0]
        implied = tuple(name for name in (*issuer.offered, *tools) if name != first)
        return ScopesSettings(baseline=issuer.offered, obtainable=(), implied={first: implied})
    if issuer.offered != tools:
        pairs = zip(issuer.offered, tools, strict=True)
        return ScopesSettings(obtainable=(), implied={full: (name,) for full, name in pairs})
    return ScopesSettings(admin=ADMIN_SCOPE if shape == DEVELOPMENT else "")


def tables(config: Config) -> list[str]:
    """Return the lines of a configuration file that fit the imitated provider."""
    lines = ["[[issuers]]", *members(config.issuers[0])]
    if config.scopes != ScopesSettings():
        lines += ["", "[scopes]", *members(config.scopes)]
    return lines


def members(table: msgspec.Struct) -> list[str]:
    """Return what differs from the defaults in *table*, one line of TOML each."""
    return [f"{name} = {inline(value)}" for name, value in changed(table)]


def changed(table: msgspec.Struct) -> Iterator[tuple[str, object]]:
    """Yield the members of *table* that differ from their defaults."""
    for field in msgspec.structs.fields(table):
        value = getattr(table, field.name)
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        if value != default:
            yield field.encode_name, value


def inline(value: object) -> str:
    """Return *value* as an inline value of TOML."""
    if isinstance(value, msgspec.Struct):
        return inline(dict(changed(value)))
    if isinstance(value, Mapping):
        pairs = (f"{key(str(name))} = {inline(item)}" for name, item in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(inline(item) for item in value)}]"
    return msgspec.json.encode(value).decode()


def key(name: str) -> str:
    """Return *name* as a key of TOML."""
    bare = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return name if bare else msgspec.json.encode(name).decode()
