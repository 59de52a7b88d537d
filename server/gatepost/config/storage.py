"""Judges where the server keeps what outlives a request."""

import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from gatepost.config.places import unusable
from gatepost.config.references import REFERENCE, UnresolvedReference, resolve
from gatepost.settings import Config
from gatepost.stores.backends import DATABASES, MEMORY, RELAYS, Backend, scheme_of
from gatepost_authz.config import Problem

DATABASE, SHARED = "storage.database", "storage.shared"
SQLITE = "sqlite:///"
# The URL itself is never shown: it may hold a password.
SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,20}")


def problems(config: Config) -> Iterator[Problem]:
    """What keeps the stores from being opened, or several processes from sharing them."""
    for setting, value, backends in (
        (DATABASE, config.storage.database, DATABASES),
        (SHARED, config.storage.shared, RELAYS),
    ):
        url = value
        if REFERENCE.match(value):
            try:
                url = resolve(value)
            except UnresolvedReference as error:
                yield Problem(
                    "config.E030", str(error), "set it where the server runs", setting=setting
                )
                continue
        elif not config.development and _password(value):
            yield Problem(
                "config.E031",
                "the address holds a password, and whoever reads the file has it",
                f'put the whole address elsewhere: {setting} = "env:NAME" or "file:PATH"',
                setting=setting,
            )
        yield from _address(setting, url, backends)
    yield from _shared(config)


def _address(setting: str, url: str, backends: Mapping[str, Backend]) -> Iterator[Problem]:
    if url == {DATABASE: MEMORY, SHARED: ""}[setting]:
        return
    backend = backends.get(scheme_of(url))
    if backend is None or not _is_complete(url):
        scheme = SCHEME.match(scheme_of(url))
        shown = f"{scheme[0]!r}" if backend is None and scheme and ":" in url else "this"
        known = (f"{SQLITE}PATH", "postgresql://…", MEMORY) if setting == DATABASE else backends
        yield Problem(
            "config.E032",
            f"`{setting}`: {shown} is not the address of a store",
            f"known here: {', '.join(one if ':' in one else f'{one}://…' for one in known)}",
            setting=setting,
        )
    elif find_spec(backend.driver) is None:
        yield Problem(
            "config.E033",
            f"`{setting}` needs {backend.driver}, which is not installed",
            f"pip install 'gatepost[{backend.extra}]'" if backend.extra else "",
            setting=setting,
        )
    elif url.startswith(SQLITE):
        path = Path(unquote(url.removeprefix(SQLITE)))
        # Not only the file: SQLite keeps its log beside it.
        reason = f"{path} is a folder" if path.is_dir() else unusable(path.parent)
        if reason is not None:
            yield Problem(
                "config.E034",
                f"the database cannot be kept in {path}: {reason}",
                "name a file in a folder that the server may write to",
                setting=setting,
            )


def _shared(config: Config) -> Iterator[Problem]:
    if config.storage.database == MEMORY and not config.development:
        yield Problem(
            "config.W030",
            "tasks, retry keys, ended sessions, approvals, revocations and the record of what "
            "happened are forgotten when the server stops",
            f'set storage.database = "{SQLITE}PATH" or "postgresql://…"',
            "warning",
            DATABASE,
        )
    if config.listen.workers <= 1:
        return
    if not config.storage.shared:
        yield Problem(
            "config.E035",
            f"{config.listen.workers} workers cannot reach each other's clients without a relay",
            'set storage.shared = "redis://…" (Valkey or Redis), or listen.workers = 1',
            setting=SHARED,
        )
    if config.storage.database == MEMORY:
        yield Problem(
            "config.E036",
            "each worker would have a memory of its own",
            f'set storage.database = "{SQLITE}PATH" or "postgresql://…", or listen.workers = 1',
            setting=DATABASE,
        )


def _password(url: str) -> bool:
    """Whether the address holds one, between its user and its host or among its options."""
    try:
        parts = urlsplit(url)
        return bool(parts.password) or "password=" in parts.query.lower()
    except ValueError:
        return True


def _is_complete(url: str) -> bool:
    """Whether something follows the scheme: a path, or a host and a port that can be one."""
    if url.startswith(SQLITE):
        path = url.removeprefix(SQLITE)
        # SQLite's own words for what is no file: each connection would have one of its own.
        return bool(path) and "?" not in path and not path.startswith((":", "file:"))
    try:
        parts = urlsplit(url)
        # PostgreSQL's socket is named as an option: postgresql:///name?host=/run/postgresql
        place = parts.hostname or (parts.scheme == "postgresql" and "host=/" in parts.query)
        return url.startswith(f"{parts.scheme}://") and bool(place) and parts.port != 0
    except ValueError:
        return False
