"""Serve the MCP servers that the command line of `gatepost dev` names."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click
import msgspec

from gatepost.config.settings import Config
from gatepost.config.upstreams import UpstreamSettings, UpstreamsFile
from gatepost.upstreams.import_formats import ImportProblem, settings_of_file
from gatepost_authz.addresses import is_loopback_host, parted

DEV_TENANTS = ("acme", "globex")
ADMIN_SCOPE = "gatepost:admin"
"""The scope that a token needs to manage MCP servers and agents."""
SERVER_SCOPES = "mcp:"
"""The beginning of the scopes of MCP servers that are registered while the issuer runs."""


class DevUpstreams(msgspec.Struct, frozen=True):
    """The tables of the configuration about MCP servers."""

    tables: tuple[UpstreamSettings, ...] = ()
    file: UpstreamsFile = UpstreamsFile()
    allow_hosts: tuple[str, ...] = ()
    """The hosts of this machine that the tables name."""


NO_UPSTREAMS = DevUpstreams()


def dev_upstreams(texts: Sequence[str], path: Path | None) -> DevUpstreams:
    """
    Return the tables for `--upstream NAME=URL` and `--upstreams FILE`, for both tenants.

    Raises a usage error. Of this machine, only the hosts that the URLs name can be reached.
    """
    tables = []
    hosts = []
    for text in texts:
        name, separator, url = text.partition("=")
        if not (name and separator and url):
            raise click.BadParameter(
                f"{text!r} is not NAME=URL, such as crm=http://127.0.0.1:9100/mcp",
                param_hint="--upstream",
            )
        tables.append(UpstreamSettings(name=name, tenants=DEV_TENANTS, url=url))
        hosts += _own_host(url)
    file = UpstreamsFile()
    if path is not None:
        file = UpstreamsFile(path=str(path.resolve()), tenants=DEV_TENANTS)
        with suppress(ImportProblem):  # `problems` reports the error
            hosts += [host for server in settings_of_file(file) for host in _own_host(server.url)]
    return DevUpstreams(tuple(tables), file, tuple(dict.fromkeys(hosts)))


def _own_host(url: str) -> list[str]:
    """Return the host and port of a URL of this machine."""
    try:
        parts = parted(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):
        return []  # `problems` reports the error
    host = parts.hostname or ""
    if not is_loopback_host(host):
        return []
    return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}"]


def upstream_scopes(config: Config) -> frozenset[str]:
    """Return the scopes that the configuration gives to tools of MCP servers."""
    return frozenset(
        scope
        for server in config.upstreams
        for scopes in server.scopes.values()
        for scope in scopes
    )
