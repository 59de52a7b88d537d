"""Check a readable configuration and report every problem with a stable id and a hint."""

import difflib
import ssl
from collections.abc import Iterable, Iterator
from importlib import import_module
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import urlsplit

from gatepost.check import (
    approvals,
    audit,
    dashboard,
    exposure,
    file_permissions,
    limits,
    paths,
    stdio,
    storage,
    telemetry,
)
from gatepost.check.pack_loading import Toolbox
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
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def problems(config: Config, toolbox: Toolbox) -> Iterator[Problem]:
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
    yield from _keys(config, toolbox)
    yield from _secrets(config)
    yield from paths.problems(config)
    yield from storage.problems(config)
    yield from _listen(config)
    yield from _tls(config)
    yield from _mode(config)
    yield from _tenancy(config)
    yield from toolbox.problems
    yield from _packs(config)
    yield from stdio.problems(config)
    yield from dashboard.problems(config)
    yield from telemetry.problems(config)
    yield from _tools(config, toolbox)
    if config.has_upstreams or config.credentials:
        # Imported here, because other configurations do not load the code for upstreams.
        yield from import_module("gatepost.check.credentials").problems(config)
        yield from import_module("gatepost.check.upstreams").problems(config, toolbox)
    yield from approvals.problems(config, toolbox)
    yield from _numbers(config)
    yield from limits.problems(config, toolbox)
    yield from audit.problems(config)
    yield from exposure.problems(config, toolbox)
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


def _keys(config: Config, toolbox: Toolbox) -> Iterator[Problem]:
    ring = config.keys.ring
    if not ring:
        if not config.development:
            yield Problem(
                "config.E006",
                "there is no key ring, so sessions do not survive a restart",
                'run `gatepost keyring new keyring.json` and set [keys] ring = "file:keyring.json"',
                setting="keys.ring",
            )
        elif any(offer.secret_arguments for offer in toolbox.offers):
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


def _listen(config: Config) -> Iterator[Problem]:
    listen = config.listen
    for at, network in enumerate(listen.trusted_proxies):
        try:
            ip_network(network)
        except ValueError:
            yield Problem(
                "config.E009",
                f"{network!r} is not a network",
                "write 10.0.0.0/8, or 10.0.0.7/32 for one address",
                setting=f"listen.trusted_proxies[{at}]",
            )
    for at, origin in enumerate(listen.allowed_origins):
        if not _is_origin(origin):
            yield Problem(
                "config.E015",
                f"{origin!r} is not an origin",
                "write it as browsers send it: https://app.example.com, without a path or `*`",
                setting=f"listen.allowed_origins[{at}]",
            )
    if not 0 <= listen.port <= 65535:
        yield Problem("config.E016", f"{listen.port} is not a port number", setting="listen.port")
    if listen.workers < 1:
        yield Problem(
            "config.E016", "`listen.workers` must be at least 1", setting="listen.workers"
        )


def _is_origin(origin: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    rebuilt = f"{parts.scheme}://{parts.netloc}"
    return (
        bool(parts.scheme and parts.hostname)
        and rebuilt == origin == origin.lower()
        and origin.isascii()
        and "*" not in origin
        and "@" not in origin
    )


def _tls(config: Config) -> Iterator[Problem]:
    certificate, key = config.listen.tls_certificate, config.listen.tls_key
    if bool(certificate) != bool(key):
        yield Problem(
            "config.E014",
            "`listen.tls_certificate` and `listen.tls_key` must be set together",
            "set both, or neither",
            setting="listen.tls_key",
        )
    elif certificate:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            yield Problem(
                "config.E014",
                f"the certificate or its key cannot be used: {error.strerror or error}",
                "both must be PEM files that the server's user can read",
                setting="listen.tls_certificate",
            )
    elif not config.development and not config.listen.trusted_proxies:
        yield Problem(
            "config.E008",
            "production mode requires HTTPS, but neither TLS nor a TLS proxy is configured",
            "add the proxy that terminates TLS to listen.trusted_proxies, or set tls_certificate",
            setting="listen",
        )


def _mode(config: Config) -> Iterator[Problem]:
    if not config.development:
        return
    host = urlsplit(config.resource).hostname or ""
    for setting, value in (("resource", host), ("listen.host", config.listen.host)):
        if value not in LOOPBACK:
            yield Problem(
                "config.E017",
                f"development mode works on loopback addresses only, and {value!r} is not loopback",
                'use 127.0.0.1, or mode = "production"',
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


def _tools(config: Config, toolbox: Toolbox) -> Iterator[Problem]:
    if not toolbox.offers:
        yield Problem(
            "config.W003",
            "no tool, resource or prompt is enabled",
            "add files to tools.load or built-in packs to tools.packs",
            "warning",
            "tools",
        )
    for offer in toolbox.offers:
        if offer.kind in {"tool", "prompt"} and is_upstream_name(offer.name):
            yield Problem(
                "config.E151",
                f"the {offer.kind} {offer.name!r} has a name that only MCP servers behind this "
                "gate have",
                "rename it: mcp_NAME__TOOL is the name of the tool TOOL of the server NAME",
                setting="tools",
            )
    for scope in config.scopes.obtainable or ():
        if toolbox.offers and scope not in toolbox.declared_scopes:
            yield Problem(
                "config.W002",
                f"no enabled tool, resource or prompt needs the obtainable scope {scope!r}",
                _nearest(scope, toolbox.declared_scopes),
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


def _numbers(config: Config) -> Iterator[Problem]:
    limits, tools, tasks = config.limits, config.tools, config.tasks
    positive = {
        "tools.timeout_s": tools.timeout_s,
        "tools.max_result_bytes": tools.max_result_bytes,
        "tasks.ttl_s": tasks.ttl_s,
        "tasks.poll_interval_s": tasks.poll_interval_s,
        "tasks.max_per_caller": tasks.max_per_caller,
        "tasks.lease_s": tasks.lease_s,
        "retention.once_s": config.retention.once_s,
        "dashboard.session_s": config.dashboard.session_s,
        "dashboard.idle_s": config.dashboard.idle_s,
        "mcp.page_size": config.mcp.page_size,
        "limits.burst": limits.burst,
        "limits.max_body_bytes": limits.max_body_bytes,
        "limits.max_body_values": limits.max_body_values,
        "limits.max_header_bytes": limits.max_header_bytes,
        "limits.header_timeout_s": limits.header_timeout_s,
        "limits.body_timeout_s": limits.body_timeout_s,
        "limits.listen_streams": limits.listen_streams,
        "limits.client_requests_per_caller": limits.client_requests_per_caller,
        "limits.client_request_timeout_s": limits.client_request_timeout_s,
        "limits.listen_streams_per_caller": limits.listen_streams_per_caller,
    }
    for setting, number in positive.items():
        if number <= 0:
            yield Problem("config.E016", f"`{setting}` must be more than 0", setting=setting)
    not_negative = {
        "limits.failures_per_second": limits.failures_per_second,
        "limits.requests_per_second": limits.requests_per_second,
        "limits.cached_tokens": limits.cached_tokens,
        "limits.unread_bytes": limits.unread_bytes,
        "limits.unread_bytes_per_caller": limits.unread_bytes_per_caller,
        "limits.read_bytes_per_second": limits.read_bytes_per_second,
        "listen.drain_s": config.listen.drain_s,
        "listen.leave_s": config.leave_s,
    }
    for setting, number in not_negative.items():
        if number < 0:
            yield Problem("config.E016", f"`{setting}` must not be negative", setting=setting)


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
