"""Judges what a configuration points at outside itself: a folder, a file, a proxy."""

import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from gatepost.settings import Config
from gatepost_authz.config import Problem
from gatepost_authz.reach import allowed_host

UNCOUNTED = 10**18
"""More than any count of a workspace can say."""


def problems(config: Config) -> Iterator[Problem]:
    """What would fail only when it is first used, or with a traceback at the start."""
    if (reason := unusable(Path(config.workspace.root))) is not None:
        yield Problem(
            "config.E021",
            f"the workspaces cannot be kept in {config.workspace.root}: {reason}",
            "name a folder that the server may write to",
            setting="workspace.root",
        )
    quotas = {
        "workspace.quota_bytes": config.workspace.quota_bytes,
        "workspace.quota_files": config.workspace.quota_files,
    }
    for setting, quota in quotas.items():
        if not 0 < quota < UNCOUNTED:
            yield Problem(
                "config.E050",
                f"`{setting}` is {quota}, which is no amount of files to keep",
                "write a number above 0; leave it out for the default",
                setting=setting,
            )
    if config.network.ca_bundle and not _holds_certificates(config.network.ca_bundle):
        yield Problem(
            "config.E022",
            f"{config.network.ca_bundle} cannot be read as PEM certificates",
            "name a file with the company's CA certificates; the system's are trusted anyway",
            setting="network.ca_bundle",
        )
    if config.network.proxy and not _is_proxy(config.network.proxy):
        # Not shown: its address may hold a password.
        yield Problem(
            "config.E023",
            "the proxy's address is not one of an HTTP proxy",
            'for example proxy = "http://proxy.example.com:3128"',
            setting="network.proxy",
        )
    for at, entry in enumerate(config.network.allow_hosts):
        try:
            allowed_host(entry)
        except ValueError as error:
            yield Problem(
                "config.E024",
                f"{entry!r} names no host that tools may reach: {error}",
                "write `host` (https) or `host:port`, without scheme, path or wildcard",
                setting=f"network.allow_hosts[{at}]",
            )


def unusable(folder: Path) -> str | None:
    """Why nothing can be written below *folder*; it, and folders above it, may be made first."""
    try:
        existing = next(one for one in (folder, *folder.absolute().parents) if one.exists())
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
