"""Compose the configuration, issuer and state of `gatepost dev`."""

import contextlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import msgspec

from gatepost.config.approvals import ApprovalsSettings
from gatepost.config.pack_registration import registrations
from gatepost.config.settings import (
    Config,
    KeySettings,
    Listen,
    StdioSettings,
    StorageSettings,
    TenancySettings,
    ToolsSettings,
)
from gatepost.dev.imitating import (
    APP_CLIENT,
    DASHBOARD_CLIENT,
    SECRET_FILES,
    client_id,
    inline,
    issuer_table,
    static_clients,
)
from gatepost.dev.token_command import STATE_FILE, DevState
from gatepost.dev.upstreams import (
    ADMIN_SCOPE,
    DEV_TENANTS,
    NO_UPSTREAMS,
    SERVER_SCOPES,
    DevUpstreams,
)
from gatepost.permissions import close_to_others
from gatepost.secrets.keyring import KeyRing, create
from gatepost_keys.imitation import DEVELOPMENT, Imitation
from gatepost_keys.issuer.production_check import problems
from gatepost_keys.issuer.settings import MOUNT, IssuerSettings
from gatepost_keys.issuer.state import CLI_CLIENT

HOST = "127.0.0.1"
DATABASE_FILE = "gatepost.db"
RING_FILE = "keyring.json"
SETTINGS_FILE = "dev.toml"
DRAIN_S = 5
"""How long a stop waits for calls, unless a setting says otherwise."""
APPROVAL_S = 1_800.0
"""How long a call waits for approval: a new user has to find the page and sign in first."""
OWN_OF_LISTEN = ("host", "port", "workers", "tls_certificate", "tls_key", "trusted_proxies")
"""The settings of `[listen]` that development does not use."""


class IssuerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command line for the issuer."""

    imitation: Imitation = DEVELOPMENT
    opaque: bool = False
    """Whether access tokens are opaque."""
    rotate_keys_every_s: int = 0
    auto_approve: bool = False
    any_scope: bool = False
    """Whether every scope exists, because a reload may add tools with new scopes."""


def opaque_tokens(issuer_options: IssuerOptions) -> bool:
    """Return whether the issuer's access tokens are opaque."""
    return issuer_options.opaque or issuer_options.imitation.opaque == "always"


def dev_config(
    port: int,
    *,
    tools: tuple[str, ...],
    state: Path,
    issuer_options: IssuerOptions | None = None,
    upstreams: DevUpstreams = NO_UPSTREAMS,
    user_config: Config | None = None,
) -> Config:
    """
    Return the development configuration: loopback only, one issuer, tenants on first use.

    *user_config* are further settings. What development decides replaces theirs, and its packs,
    files, servers and hosts come on top.
    """
    resource, chosen = resource_at(port), issuer_options or IssuerOptions()
    base = user_config or Config(resource=resource)
    replace = msgspec.structs.replace
    hosts = dict.fromkeys((*base.network.allow_hosts, *upstreams.allow_hosts))
    return replace(
        base,
        resource=resource,
        mode="development",
        listen=listen_at(port, base.listen),
        keys=KeySettings(),
        issuers=(issuer_table(resource, state, chosen.imitation, opaque=opaque_tokens(chosen)),),
        tenancy=TenancySettings(tenants=DEV_TENANTS),
        storage=StorageSettings(database=f"sqlite:///{quote(str(state / DATABASE_FILE))}"),
        workspace=replace(base.workspace, root=str(state / "workspaces")),
        tools=replace(
            base.tools,
            packs=tuple(dict.fromkeys((*packs_in_development(), *base.tools.packs))),
            load=tuple(dict.fromkeys((*base.tools.load, *tools))),
        ),
        upstreams=(*base.upstreams, *upstreams.tables),
        upstreams_file=upstreams.file if upstreams.file.path else base.upstreams_file,
        network=replace(base.network, allow_hosts=tuple(hosts)),
        log=replace(base.log, format="console"),
        approvals=approvals_of(base.approvals),
        stdio=StdioSettings(),
    )


def packs_in_development() -> tuple[str, ...]:
    """Return the registered packs that need no setting in development."""
    registered = registrations().packs.items()
    return tuple(name for name, pack in registered if pack.registration.in_development)


def listen_at(port: int, listen: Listen) -> Listen:
    """Return where and how the server listens: on this machine, in one process, without TLS."""
    settings = msgspec.structs.asdict(listen)
    usual = Listen()
    overridden = {name: getattr(usual, name) for name in OWN_OF_LISTEN}
    drain_s = DRAIN_S if listen.drain_s == usual.drain_s else listen.drain_s
    return Listen(**settings | overridden | {"host": HOST, "port": port, "drain_s": drain_s})


def approvals_of(settings: ApprovalsSettings) -> ApprovalsSettings:
    """Return the settings of approvals, with more time unless a setting says otherwise."""
    if settings.timeout_s != ApprovalsSettings().timeout_s:
        return settings
    return msgspec.structs.replace(settings, timeout_s=APPROVAL_S)


def resource_at(port: int) -> str:
    """Return the resource of a development server at that port."""
    return f"http://{HOST}:{port}/mcp"


def dev_issuer(
    config: Config,
    scopes: frozenset[str],
    issuer_options: IssuerOptions,
    *,
    client_secrets: Mapping[str, str] | None = None,
) -> IssuerSettings:
    """
    Return the issuer's settings for that configuration; *scopes* are the scopes of its tools.

    Clients without a secret in *client_secrets* do not work, such as dashboard sign-in.
    """
    imitation = issuer_options.imitation
    shaped = imitation != DEVELOPMENT
    return IssuerSettings(
        issuer=f"{config.resource.removesuffix('/mcp')}{MOUNT}",
        resources=(config.resource,),
        scopes=tuple(sorted(scopes if shaped else {*scopes, ADMIN_SCOPE})),
        scope_prefixes=() if shaped else ("",) if issuer_options.any_scope else (SERVER_SCOPES,),
        cli_secret=secrets.token_urlsafe(32),
        auto_approve=issuer_options.auto_approve,
        algorithm=imitation.algorithm,
        imitation=imitation,
        access_token_format="opaque" if opaque_tokens(issuer_options) else "jwt",
        rotate_keys_every_s=issuer_options.rotate_keys_every_s,
        token_client="" if imitation == DEVELOPMENT else client_id(imitation, APP_CLIENT),
        clients=static_clients(config.resource, imitation, client_secrets or {}),
    )


def locked(config: Config, issuer: IssuerSettings, environ: Mapping[str, str]) -> list[str]:
    """Return the reasons why the issuer must not run with this configuration; empty if it can."""
    listen = config.listen
    return problems(
        issuer.issuer,
        config.resource,
        listen.host,
        production=not config.development,
        tls=bool(listen.tls_certificate or listen.tls_key),
        trusted_proxies=listen.trusted_proxies,
        other_issuers=[
            issuer_settings.issuer
            for issuer_settings in config.issuers
            if not issuer_settings.issuer.startswith(issuer.issuer)
        ],
        environ=environ,
    )


def make_state_folder(folder: Path) -> None:
    """Create the state folder, closed to other users; OSError, also for another user's folder."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        close_to_others(handle, str(folder))
        for name in (*SECRET_FILES.values(), STATE_FILE, SETTINGS_FILE):
            with contextlib.suppress(FileNotFoundError):
                _close(folder / name)
    finally:
        os.close(handle)


def _close(path: Path) -> None:
    """Close a file of the state folder that other users can access."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        close_to_others(file, str(path))
    finally:
        os.close(file)


def dev_secrets(folder: Path, imitation: Imitation) -> dict[str, str]:
    """Return the secrets of the clients by name, created if missing; raises OSError."""
    names = [DASHBOARD_CLIENT] if imitation == DEVELOPMENT else list(SECRET_FILES)
    return {name: dev_secret(folder / SECRET_FILES[name]) for name in names}


def dev_secret(path: Path) -> str:
    """Return the secret in that file, created if missing; raises OSError."""
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(secrets.token_urlsafe(32))
    return path.read_text(encoding="utf-8").strip()


def dev_ring(folder: Path) -> KeyRing:
    """
    Return the key ring of the state folder, created if missing.

    What the keys encrypt is stored in the same folder. Raises KeyRingError.
    """
    path = folder / RING_FILE
    if not path.exists():
        create(path)
    return KeyRing.load(f"file:{path}")


def write_settings(folder: Path, config: Config) -> None:
    """Write a file for `--config` of commands that use this server's database; OSError."""
    quoted = msgspec.json.encode
    path = folder.resolve()
    lines = [
        b"resource = %b" % quoted(config.resource),
        b'mode = "development"',
        b"issuers = [%b]" % inline(config.issuers[0]).encode(),
        b"scopes = %b" % inline(config.scopes).encode(),
        b"tenancy = { tenants = %b }" % quoted(config.tenancy.tenants),
        b"storage = { database = %b }" % quoted(f"sqlite:///{quote(str(path / DATABASE_FILE))}"),
        b"tools = %b" % inline(from_anywhere(config.tools)).encode(),
        b"packs = %b" % inline(config.packs).encode(),
        b"credentials = %b" % inline(config.credentials).encode(),
        b"approvals = %b" % inline(config.approvals).encode(),
        b"keys = { ring = %b }" % quoted(f"file:{path / RING_FILE}"),
        b"network = %b" % inline(config.network).encode(),
        b"upstreams_file = %b" % inline(config.upstreams_file).encode(),
        b"upstreams = [%b]" % ", ".join(map(inline, config.upstreams)).encode(),
    ]
    # Created closed to others: the next start would otherwise take their permissions away, and
    # warn about that.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(folder / SETTINGS_FILE, flags, 0o600), "wb") as file:
        file.write(b"\n".join([*lines, b""]))


def from_anywhere(tools: ToolsSettings) -> ToolsSettings:
    """Return the settings with absolute paths for the files of `load`."""
    load = (
        str(Path(source).resolve()) if source.endswith(".py") else source for source in tools.load
    )
    return msgspec.structs.replace(tools, load=tuple(load))


def write_state(folder: Path, config: Config, issuer: IssuerSettings) -> Path:
    """Write the state that `gatepost token` uses to reach the issuer; it contains a secret."""
    state = DevState(
        resource=config.resource,
        token_endpoint=f"{issuer.origin}{issuer.path('token')}",
        client_id=CLI_CLIENT,
        client_secret=issuer.cli_secret,
    )
    path = folder / STATE_FILE
    temporary = folder / f".{STATE_FILE}.{secrets.token_hex(4)}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(state))
    temporary.replace(path)
    return path


def forget_state(path: Path, issuer: IssuerSettings) -> None:
    """Remove what `write_state` wrote, unless another server has replaced it."""
    try:
        state = msgspec.json.decode(path.read_bytes(), type=DevState)
        if state.client_secret == issuer.cli_secret:
            path.unlink()
    except (OSError, msgspec.DecodeError):
        return
