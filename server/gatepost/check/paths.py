"""Check the folders, files and proxies that a configuration names."""

import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from gatepost.config.settings import Config
from gatepost_authz.address_policy import allowed_host
from gatepost_authz.config import Problem

UNCOUNTED = 10**18
"""Greater than any count of a workspace."""


def problems(config: Config) -> Iterator[Problem]:
    """Yield problems that would otherwise show at the first use, or as a traceback at the start."""
    yield from _workspaces(config)
    quotas = {
        "workspace.quota_bytes": config.workspace.quota_bytes,
        "workspace.quota_files": config.workspace.quota_files,
    }
    for setting, quota in quotas.items():
        if not 0 < quota < UNCOUNTED:
            yield Problem(
                "config.E050",
                f"`{setting}` is {quota}, but must be more than 0",
                "write a number above 0, or remove the setting to use the default",
                setting=setting,
            )
    if config.network.ca_bundle and not _holds_certificates(config.network.ca_bundle):
        yield Problem(
            "config.E022",
            f"{config.network.ca_bundle} cannot be read as PEM certificates",
            "name a PEM file with additional CA certificates; the system's are always trusted",
            setting="network.ca_bundle",
        )
    if config.network.proxy and not _is_proxy(config.network.proxy):
        # The value is not shown, because the URL may contain a password.
        yield Problem(
            "config.E023",
            "the proxy URL is not the URL of an HTTP proxy",
            'for example proxy = "http://proxy.example.com:3128"',
            setting="network.proxy",
        )
    for at, entry in enumerate(config.network.allow_hosts):
        try:
            allowed_host(entry)
        except ValueError as error:
            yield Problem(
                "config.E024",
                f"{entry!r} is not a host: {error}",
                "write `host` (https) or `host:port`, without scheme, path or wildcard",
                setting=f"network.allow_hosts[{at}]",
            )


def _workspaces(config: Config) -> Iterator[Problem]:
    reason = unusable(Path(config.workspace.root))
    if reason is None:
        return
    message = f"workspaces cannot be stored in {config.workspace.root}: {reason}"
    if config.stores_files:
        yield Problem(
            "config.E021",
            message,
            "name a folder that the server can write to",
            setting="workspace.root",
        )
    elif config.tools.load:
        yield Problem(
            "config.W021",
            f"{message}; tools of `tools.load` that use files will fail",
            "name a folder that the server can write to, if these tools use files",
            "warning",
            "workspace.root",
        )


def unusable(folder: Path) -> str | None:
    """Return why *folder* cannot be written to; missing folders can be created."""
    try:
        existing = next(
            ancestor for ancestor in (folder, *folder.absolute().parents) if ancestor.exists()
        )
    except OSError as error:
        return error.strerror
    if not existing.is_dir():
        return f"{existing} is not a folder"
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"{existing} is not writable"
    return None


def _holds_certificates(path: str) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except (OSError, ssl.SSLError):
        return False
    return True


def _is_proxy(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
