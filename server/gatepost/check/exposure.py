"""Find settings that expose too much in production."""

import math
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from urllib.parse import urlsplit

from gatepost.check.pack_loading import LoadedPacks
from gatepost.config.settings import Config
from gatepost.policy.approvals.tool_policies import PACK, matches_any
from gatepost_authz.address_policy import allowed_host
from gatepost_authz.addresses import is_loopback_host, literal
from gatepost_authz.config import Problem
from gatepost_authz.exposure import METADATA_NAMES, is_metadata, too_wide

ENDLESS = 1_000_000.0
"""A limit of at least this number has no effect."""
TREES = ("/bin", "/boot", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr")
"""System folders, below which no tenant files belong."""
PLACES = (
    "/ /dev /dev/shm /home /media /mnt /opt /private /private/etc /private/var /root /run /srv /tmp"
    " /Applications /Library /System /Users /var /var/lib /var/log /var/run /var/tmp"
)
"""Folders that contain the folders of other programs; a separate folder below them is allowed."""
HOME_FOLDERS = ("/home", "/Users")


def problems(config: Config, loaded_packs: LoadedPacks) -> Iterator[Problem]:
    """
    Yield the problems in production; a development server is reachable from this machine only.
    """
    if config.development:
        return
    yield from _proxies(config)
    yield from _origins(config)
    yield from _approvals(config, loaded_packs)
    yield from _limits(config)
    yield from _hosts(config)
    yield from _root(config)


def _proxies(config: Config) -> Iterator[Problem]:
    if too_wide(config.listen.trusted_proxies):
        yield Problem(
            "config.E110",
            "nearly every address is a trusted proxy, so any caller can forge its address and "
            "claim HTTPS",
            'name the networks of your own proxies: trusted_proxies = ["10.0.0.0/24"]',
            setting="listen.trusted_proxies",
        )


def _origins(config: Config) -> Iterator[Problem]:
    for at, origin in enumerate(config.listen.allowed_origins):
        if not origin.lower().startswith("http:"):
            continue
        is_local = is_loopback_host(urlsplit(origin).hostname or "")
        yield Problem(
            "config.W111" if is_local else "config.E111",
            f"{origin} is not encrypted, so "
            + ("any program on a user's machine" if is_local else "any network attacker")
            + " can serve a page from it that calls this server",
            "use the https:// origin",
            "warning" if is_local else "error",
            f"listen.allowed_origins[{at}]",
        )


def _approvals(config: Config, loaded_packs: LoadedPacks) -> Iterator[Problem]:
    freed = config.approvals.auto_approve
    for at, pattern in enumerate(freed):
        if set(pattern.removeprefix(PACK)) == {"*"}:
            yield Problem(
                "config.E112",
                f"{pattern!r} exempts every tool from approval, including tools that declare "
                "approval and tools that you add later",
                "list the tools that need no approval",
                setting=f"approvals.auto_approve[{at}]",
            )
            return
    tools = loaded_packs.tools
    wide = tuple(pattern for pattern in freed if "*" in pattern)
    if len({tool.pack for tool in tools}) > 1 and all(matches_any(wide, tool) for tool in tools):
        yield Problem(
            "config.W112",
            "the patterns together exempt every enabled tool from approval",
            "list the tools that need no approval",
            "warning",
            "approvals.auto_approve",
        )


def _limits(config: Config) -> Iterator[Problem]:
    limits = config.limits
    rates = (limits, limits.tenant, limits.tool)
    rated = any(_bounds(rate.requests_per_second) and not rate.burst > ENDLESS for rate in rates)
    counts = (limits.concurrency, limits.tenant.concurrency, limits.tool.concurrency)
    if not rated and not any(map(_bounds, counts)):
        yield Problem(
            "config.E113",
            "calls have no limit: no rate limit and no concurrency limit is set",
            "set limits.requests_per_second, limits.concurrency or limits.tenant",
            setting="limits",
        )
    elif not rated:
        yield Problem(
            "config.W113",
            "callers and tenants have no rate limit",
            "set limits.requests_per_second or limits.tenant.requests_per_second",
            "warning",
            "limits.requests_per_second",
        )
    if not limits.audit_bytes_per_day and not limits.tenant.audit_bytes_per_day:
        yield Problem(
            "config.W122",
            "nothing limits how many bytes of audit records a caller or tenant causes",
            "set limits.audit_bytes_per_day or limits.tenant.audit_bytes_per_day",
            "warning",
            "limits.audit_bytes_per_day",
        )
    if not _bounds(limits.failures_per_second):
        yield Problem(
            "config.W114",
            "failed authentications of a peer address have no rate limit",
            "set limits.failures_per_second",
            "warning",
            "limits.failures_per_second",
        )


def _bounds(number: float) -> bool:
    return 0 < number <= ENDLESS and math.isfinite(number)


def _hosts(config: Config) -> Iterator[Problem]:
    for at, entry in enumerate(config.network.allow_hosts):
        try:
            host, port = allowed_host(entry)
        except ValueError:
            continue  # reported already
        setting = f"network.allow_hosts[{at}]"
        address = literal(host)
        if host in METADATA_NAMES or (address is not None and is_metadata(address)):
            yield Problem(
                "config.E114",
                f"{entry!r} is a cloud metadata service, which gives this machine's credentials "
                "to any tool",
                "remove it; give tools their credentials as secrets of the tenant",
                setting=setting,
            )
        elif _is_metrics(config, host, port, address):
            yield Problem(
                "config.E115",
                f"{entry!r} is the address of this server's metrics, which cover all tenants",
                "remove it, or set listen.metrics to another address",
                setting=setting,
            )


def _is_metrics(
    config: Config, host: str, port: int, address: IPv4Address | IPv6Address | None
) -> bool:
    try:
        metrics = config.metrics_address
    except ValueError:
        return False  # reported already
    if metrics is None or port != metrics.port:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    everywhere = metrics.host in ("0.0.0.0", "::")
    is_local = is_loopback_host(host) or (
        address is not None and (address.is_unspecified or address.is_loopback)
    )
    if is_local:
        return everywhere or metrics.is_loopback
    addresses = {config.listen.host, urlsplit(config.resource).hostname}
    return host == metrics.host or (everywhere and host in addresses)


def _root(config: Config) -> Iterator[Problem]:
    written = Path(config.workspace.root)
    try:
        root = written.resolve()
    except (OSError, RuntimeError, ValueError):
        return  # reported already
    system = any(root.is_relative_to(tree) for tree in TREES)
    if system or str(root) in PLACES.split() or str(root.parent) in HOME_FOLDERS:
        yield Problem(
            "config.E116",
            f"{written} is {root}, which belongs to the system or to a user and not to Gatepost"
            if written != root
            else f"{root} belongs to the system or to a user, not to Gatepost",
            'name a folder for tenants\' files alone: root = "/var/lib/gatepost/workspaces"',
            setting="workspace.root",
        )
