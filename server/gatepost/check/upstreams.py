"""Check `[[upstreams]]` and `[upstreams_file]`."""

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from gatepost.check import agents
from gatepost.check.agents import doubled, tenants_named
from gatepost.check.credentials import reference_problem
from gatepost.check.pack_loading import LoadedPacks
from gatepost.config.settings import Config
from gatepost.config.upstreams import UpstreamSettings
from gatepost.secrets.names import is_reference
from gatepost.upstreams.configured import includes
from gatepost.upstreams.fields import (
    PATTERN,
    SCOPE,
    InvalidField,
    checked_description,
    checked_header_names,
    checked_name,
    checked_url,
)
from gatepost.upstreams.import_formats import ImportProblem, looks_secret, settings_of_file
from gatepost_authz.address_policy import ToolAddressPolicy
from gatepost_authz.config import Problem

RUNNERS = {"npx": "@", "bunx": "@", "uvx": "=="}
"""Programs that fetch a package and run it, and the characters before the version."""
PACKAGE_OPTIONS = frozenset({"-p", "--package", "--from"})
MIN_MEMORY = 16_000_000


def problems(config: Config, loaded_packs: LoadedPacks) -> Iterator[Problem]:
    """Yield the problems of upstreams and agents."""
    address_policy = _address_policy(config)
    tables = [(f"upstreams[{at}]", server) for at, server in enumerate(config.upstreams)]
    if config.upstreams_file.path:
        try:
            from_file = settings_of_file(config.upstreams_file)
        except ImportProblem as problem:
            yield Problem(
                "config.E148",
                f"the file of MCP servers cannot be used: {problem}",
                "see docs/upstreams.md for the formats",
                setting="upstreams_file.path",
            )
        else:
            tables += [("upstreams_file", server) for server in from_file]
    for table, server in tables:
        yield from _server(config, server, table, address_policy)
    names = [(table, server.name, server.tenants) for table, server in tables]
    yield from doubled(names, "MCP server", "config.E141")
    yield from agents.problems(config, loaded_packs, [server for _, server in tables])


def _address_policy(config: Config) -> ToolAddressPolicy | None:
    try:
        return ToolAddressPolicy(config.network.allow_hosts)
    except ValueError:
        return None  # reported where the setting is checked


def _server(
    config: Config, server: UpstreamSettings, table: str, address_policy: ToolAddressPolicy | None
) -> Iterator[Problem]:
    try:
        checked_name(server.name)
        checked_description(server.description)
    except InvalidField as invalid:
        hint = "use snake_case, for example microsoft_learn"
        yield Problem("config.E141", invalid.message, hint, setting=f"{table}.{invalid.field}")
    yield from tenants_named(config, server.tenants, f"the MCP server {server.name!r}", table)
    yield from _transport(server, table, address_policy)
    yield from _headers(server, table)
    yield from _patterns(server, table)
    yield from _credentials(config, server, table)
    yield from _numbers(server, table)
    if server.trusted:
        yield Problem(
            "config.W141",
            f"the annotations of {server.name!r} are trusted: a tool that it marks as read-only "
            "runs without approval and is repeated after a failure",
            "remove `trusted` unless you run the server yourself",
            "warning",
            f"{table}.trusted",
        )


def _transport(
    server: UpstreamSettings, table: str, address_policy: ToolAddressPolicy | None
) -> Iterator[Problem]:
    if bool(server.url) == bool(server.command):
        yield Problem(
            "config.E142",
            f"the MCP server {server.name!r} has {'both' if server.url else 'neither'} "
            f"`url` {'and' if server.url else 'nor'} `command`",
            "set `url` for a server over HTTP, or `command` for a program",
            setting=table,
        )
        return
    if server.command:
        yield from _program(server, table)
        return
    try:
        if address_policy is not None:
            checked_url(server.url, address_policy)
    except InvalidField as invalid:
        hint = 'name a host of the own network in [network] allow_hosts = ["crm.internal:8080"]'
        yield Problem("config.E142", invalid.message, hint, setting=f"{table}.url")
    for name in ("args", "env", "reads", "writes", "network"):
        if getattr(server, name):
            yield Problem(
                "config.E142",
                f"`{name}` is for programs, and {server.name!r} has a URL",
                f"remove `{name}`",
                setting=f"{table}.{name}",
            )


def _program(server: UpstreamSettings, table: str) -> Iterator[Problem]:
    if shutil.which(server.command) is None:
        yield Problem(
            "config.E146",
            f"the program {server.command!r} of {server.name!r} is not found or cannot be executed",
            "install it, or write its absolute path",
            setting=f"{table}.command",
        )
    if package := unpinned(server.command, server.args):
        separator = RUNNERS[Path(server.command).name]
        yield Problem(
            "config.W140",
            f"{server.name!r} runs the newest version of {package!r}, whatever it is by then",
            f"name a version: {package}{separator}1.2.3",
            "warning",
            f"{table}.args",
        )
    if server.network:
        yield Problem(
            "config.W142",
            f"the program of {server.name!r} can connect to any machine that the server reaches, "
            "beside the rules of [network]",
            "remove `network` unless the program needs it",
            "warning",
            f"{table}.network",
        )
    for name in ("api_key", "headers", "credential", "list_credential"):
        if getattr(server, name):
            yield Problem(
                "config.E142",
                f"`{name}` is for servers over HTTP, and {server.name!r} is a program",
                'give it the secret in `env`: env = { API_KEY = "secret:NAME" }',
                setting=f"{table}.{name}",
            )
    yield from _environment(server, table)


def _environment(server: UpstreamSettings, table: str) -> Iterator[Problem]:
    for variable, value in server.env.items():
        setting = f"{table}.env.{variable}"
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,127}", variable) or "\0" in value:
            yield Problem("config.E143", f"{variable[:60]!r} is not a variable", setting=setting)
        elif looks_secret(variable) and value and not is_reference(value):
            # The value is not shown, because it may be the secret itself.
            yield Problem(
                "config.W143",
                f"the variable {variable} looks like a secret and has its value in the file",
                'set it by `gatepost secrets set`, and write "secret:NAME"',
                "warning",
                setting,
            )


def unpinned(command: str, args: Sequence[str]) -> str:
    """Return the package that a runner fetches without a version; empty if there is none."""
    separator = RUNNERS.get(Path(command).name)
    if separator is None:
        return ""
    package, is_named = "", False
    for argument in args:
        option, _, value = argument.partition("=")
        if option in PACKAGE_OPTIONS:
            package, is_named = value, not value
        elif is_named or not argument.startswith("-"):
            package = argument
        if package:
            break
    if not package or package.startswith((".", "/", "git+", "http:", "https:", "file:")):
        return ""
    spelt = package.removeprefix("@") if separator == "@" else package
    pinned = re.search(r"@\d", spelt) if separator == "@" else re.search(r"(?:==|@)\s*\d", spelt)
    return "" if pinned else package


def _headers(server: UpstreamSettings, table: str) -> Iterator[Problem]:
    try:
        checked_header_names(server.headers)
    except InvalidField as invalid:
        yield Problem("config.E143", invalid.message, setting=f"{table}.headers")
    values = {"api_key": server.api_key} if server.api_key else {}
    values |= {f"headers.{name}": value for name, value in server.headers.items()}
    for name, value in values.items():
        yield from reference_problem(value, f"{table}.{name}", "config.E143")


def _patterns(server: UpstreamSettings, table: str) -> Iterator[Problem]:
    patterns = [("tools", pattern) for pattern in server.tools]
    patterns += [("scopes", pattern) for pattern in server.scopes]
    for name, pattern in patterns:
        if not PATTERN.fullmatch(pattern) or (name == "scopes" and pattern.startswith("!")):
            yield Problem(
                "config.E144",
                f"{pattern[:80]!r} is not a pattern of tool names",
                "write names such as `get_*`; `!` excludes, in `tools` only",
                setting=f"{table}.{name}",
            )
    if server.tools and all(pattern.startswith("!") for pattern in server.tools):
        yield Problem(
            "config.E144",
            f"the tools of {server.name!r} are only excluded, so none is offered",
            'add "*" to offer all others',
            setting=f"{table}.tools",
        )
    for pattern, scopes in server.scopes.items():
        for scope in scopes:
            if not SCOPE.fullmatch(scope):
                yield Problem(
                    "config.E144",
                    f"{scope[:80]!r} is not a scope",
                    setting=f"{table}.scopes.{pattern}",
                )
    for original, renamed in server.renames.items():
        if not re.fullmatch(r"[a-z0-9_]{1,64}", renamed, re.ASCII) or not original:
            yield Problem(
                "config.E144",
                f"{renamed[:80]!r} is not a tool name",
                "use at most 64 of a-z, 0-9 and _",
                setting=f"{table}.renames.{original}",
            )
    if len(set(server.renames.values())) != len(server.renames):
        yield Problem("config.E144", "two tools get the same name", setting=f"{table}.renames")


def _credentials(config: Config, server: UpstreamSettings, table: str) -> Iterator[Problem]:
    if server.credential and server.api_key:
        yield Problem(
            "config.E145",
            f"{server.name!r} has both `credential` and `api_key`",
            "remove one of them",
            setting=f"{table}.credential",
        )
    for setting, name in (
        ("credential", server.credential),
        ("list_credential", server.list_credential),
    ):
        if not name:
            continue
        credential = config.credentials.get(name)
        if credential is None:
            yield Problem(
                "config.E145",
                f"there is no credential {name!r}",
                f"add a [credentials.{name}] table, or correct the name",
                setting=f"{table}.{setting}",
            )
            continue
        for tenant in server.tenants:
            if not includes(credential.tenants, tenant):
                yield Problem(
                    "config.E145",
                    f"the tenant {tenant!r} may not use the credential {name!r}",
                    f"add it to credentials.{name}.tenants",
                    setting=f"{table}.{setting}",
                )


def _numbers(server: UpstreamSettings, table: str) -> Iterator[Problem]:
    ranges = {
        "timeout_s": (server.timeout_s, 0.1, 86_400),
        "idle_s": (server.idle_s, 0.1, 86_400),
        "program_idle_s": (server.program_idle_s, 1, 86_400),
        "concurrency": (server.concurrency, 1, 10_000),
        "processes": (server.processes, 1, 10_000),
        "memory_bytes": (server.memory_bytes, MIN_MEMORY, 1_000_000_000_000),
    }
    for name, (number, low, high) in ranges.items():
        if not low <= number <= high:
            yield Problem(
                "config.E147",
                f"`{name}` must be from {low:,} to {high:,}",
                setting=f"{table}.{name}",
            )
