"""What `gatepost dev` runs: a configuration for this machine, its issuer, and its state."""

import contextlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import msgspec

from gatepost.commands.token import STATE_FILE, DevState
from gatepost.keyring import KeyRing, create
from gatepost.settings import (
    Config,
    LimitsSettings,
    Listen,
    LogSettings,
    StorageSettings,
    TenancySettings,
    ToolsSettings,
    WorkspaceSettings,
)
from gatepost_authz.config import DashboardClient, Issuer, RoleRule, TenantRule
from gatepost_keys.issuer.locks import problems
from gatepost_keys.issuer.settings import IssuerSettings, StaticClient
from gatepost_keys.issuer.state import CLI_CLIENT

HOST = "127.0.0.1"
DATABASE_FILE = "gatepost.db"
RING_FILE = "keyring.json"
SETTINGS_FILE = "dev.toml"
SECRET_FILE = "dashboard.secret"  # noqa: S105 - the file's name
DASHBOARD_CLIENT = "gatepost-dashboard"


def dev_config(port: int, *, tools: tuple[str, ...], state: Path) -> Config:
    """The configuration of a laptop: loopback only, one issuer, tenants as they come."""
    origin = f"http://{HOST}:{port}"
    return Config(
        resource=f"{origin}/mcp",
        mode="development",
        listen=Listen(host=HOST, port=port, drain_s=5),
        issuers=(
            Issuer(
                issuer=f"{origin}/dev-as",
                tenant=TenantRule(claim="org_id"),
                roles={
                    "approver": RoleRule(claim="roles", value="approver"),
                    "admin": RoleRule(claim="roles", value="admin"),
                },
                dashboard=DashboardClient(
                    client_id=DASHBOARD_CLIENT,
                    client_secret=f"file:{(state / SECRET_FILE).resolve()}",
                ),
            ),
        ),
        tenancy=TenancySettings(tenants=("acme", "globex")),
        storage=StorageSettings(database=f"sqlite:///{quote(str(state / DATABASE_FILE))}"),
        workspace=WorkspaceSettings(root=str(state / "workspaces")),
        tools=ToolsSettings(packs=("demo",), load=tools),
        # One person with a test suite at hand is no flood.
        limits=LimitsSettings(requests_per_second=200.0, burst=400),
        log=LogSettings(format="console"),
    )


def dev_issuer(
    config: Config, scopes: frozenset[str], *, auto_approve: bool, dashboard_secret: str = ""
) -> IssuerSettings:
    """
    The issuer's settings for that configuration; *scopes* are what its tools ask for.

    Without *dashboard_secret* nobody can sign in to the dashboard.
    """
    return IssuerSettings(
        issuer=config.issuers[0].issuer,
        resources=(config.resource,),
        scopes=tuple(sorted(scopes)),
        cli_secret=secrets.token_urlsafe(32),
        auto_approve=auto_approve,
        clients=(
            StaticClient(
                client_id=DASHBOARD_CLIENT,
                secret=dashboard_secret,
                name="The Gatepost dashboard",
                redirect_uris=(f"{config.resource.removesuffix('/mcp')}/dashboard/callback",),
            ),
        ),
    )


def locked(config: Config, issuer: IssuerSettings, environ: Mapping[str, str]) -> list[str]:
    """Why the issuer must not run with this configuration, as sentences; empty: it may."""
    listen = config.listen
    return problems(
        issuer.issuer,
        config.resource,
        listen.host,
        production=not config.development,
        tls=bool(listen.tls_certificate or listen.tls_key),
        trusted_proxies=listen.trusted_proxies,
        other_issuers=[one.issuer for one in config.issuers if one.issuer != issuer.issuer],
        environ=environ,
    )


def make_state_folder(folder: Path) -> None:
    """The folder for state, closed to others; raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def dev_secret(folder: Path) -> str:
    """The secret of the dashboard's client, made where there is none; raises OSError."""
    path = folder / SECRET_FILE
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(secrets.token_urlsafe(32))
    return path.read_text(encoding="utf-8").strip()


def dev_ring(folder: Path) -> KeyRing:
    """
    The ring in the state folder, made when there is none: what it seals is kept there as well.

    Raises KeyRingError.
    """
    path = folder / RING_FILE
    if not path.exists():
        create(path)
    return KeyRing.load(f"file:{path}")


def write_settings(folder: Path, config: Config) -> None:
    """Write a file for `--config` of commands that work on this server's database; OSError."""
    quoted = msgspec.json.encode
    place = folder.resolve()
    lines = [
        b"resource = %b" % quoted(config.resource),
        b'mode = "development"',
        b'issuers = [{ issuer = %b, tenant = { claim = "org_id" } }]'
        % quoted(config.issuers[0].issuer),
        b"tenancy = { tenants = %b }" % quoted(config.tenancy.tenants),
        b"storage = { database = %b }" % quoted(f"sqlite:///{quote(str(place / DATABASE_FILE))}"),
        b"tools = { packs = %b }" % quoted(config.tools.packs),
        b"keys = { ring = %b }" % quoted(f"file:{place / RING_FILE}"),
    ]
    (folder / SETTINGS_FILE).write_bytes(b"\n".join([*lines, b""]))


def write_state(folder: Path, config: Config, issuer: IssuerSettings) -> Path:
    """Tell `gatepost token` how to reach the issuer; the file holds a secret."""
    state = DevState(
        resource=config.resource,
        token_endpoint=f"{issuer.issuer}/token",
        client_id=CLI_CLIENT,
        client_secret=issuer.cli_secret,
    )
    path = folder / STATE_FILE
    fresh = folder / f".{STATE_FILE}.{secrets.token_hex(4)}"
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(state))
    fresh.replace(path)
    return path


def forget_state(path: Path, issuer: IssuerSettings) -> None:
    """Remove what `write_state` wrote, unless another server has put its own there since."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=DevState)
        if found.client_secret == issuer.cli_secret:
            path.unlink()
    except (OSError, msgspec.DecodeError):
        return
