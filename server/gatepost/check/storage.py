"""Check `[storage]`."""

import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from gatepost.check.paths import unusable
from gatepost.config.references import REFERENCE, UnresolvedReference, resolve
from gatepost.config.settings import Config
from gatepost.storage import sqlite_file
from gatepost.storage.backends import DATABASES, MEMORY, SHARED_STORES, Backend, scheme_of
from gatepost_authz.config import Problem

DATABASE, SHARED = "storage.database", "storage.shared"
# The URL itself is never shown: it may hold a password.
SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,20}")


def problems(config: Config) -> Iterator[Problem]:
    """Yield problems that prevent opening the stores, or sharing them between processes."""
    for setting, value, backends in (
        (DATABASE, config.storage.database, DATABASES),
        (SHARED, config.storage.shared, SHARED_STORES),
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
                "the URL contains a password, which everyone with access to the file can read",
                f'use a reference for the whole URL: {setting} = "env:NAME" or "file:PATH"',
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
        url_text = f"{scheme[0]!r}" if backend is None and scheme and ":" in url else "this"
        supported = (
            ("sqlite:///PATH", "postgresql://…", MEMORY) if setting == DATABASE else backends
        )
        yield Problem(
            "config.E032",
            f"`{setting}`: {url_text} is not a supported store URL",
            f"supported: {', '.join(name if ':' in name else f'{name}://…' for name in supported)}",
            setting=setting,
        )
    elif find_spec(backend.driver) is None:
        yield Problem(
            "config.E033",
            f"`{setting}` needs {backend.driver}, which is not installed",
            f"pip install 'gatepost[{backend.extra}]'" if backend.extra else "",
            setting=setting,
        )
    elif url.startswith(sqlite_file.SCHEME):
        path = Path(sqlite_file.given_path(url))
        # Check the folder too, because SQLite keeps its log beside the file.
        reason = f"{path} is a folder" if path.is_dir() else unusable(path.parent)
        if reason is not None:
            yield Problem(
                "config.E034",
                f"the database cannot be stored in {path}: {reason}",
                "name a file in a folder that the server can write to",
                setting=setting,
            )


def _shared(config: Config) -> Iterator[Problem]:
    if config.storage.database == MEMORY and not config.development:
        yield Problem(
            "config.W030",
            "tasks, idempotency keys, ended sessions, approvals, revocations and the audit log "
            "are lost when the server stops",
            'set storage.database = "sqlite:///PATH" or "postgresql://…"',
            "warning",
            DATABASE,
        )
    if config.listen.workers <= 1:
        return
    if not config.storage.shared:
        yield Problem(
            "config.E035",
            f"{config.listen.workers} workers need a shared store to reach each other's clients",
            'set storage.shared = "redis://…" (Valkey or Redis), or listen.workers = 1',
            setting=SHARED,
        )
    if config.storage.database == MEMORY:
        yield Problem(
            "config.E036",
            "each worker would have its own database in memory",
            'set storage.database = "sqlite:///PATH" or "postgresql://…", or listen.workers = 1',
            setting=DATABASE,
        )


def _password(url: str) -> bool:
    """Return whether the URL contains a password, before its host or in its options."""
    try:
        parts = urlsplit(url)
        return bool(parts.password) or "password=" in parts.query.lower()
    except ValueError:
        return True


def _is_complete(url: str) -> bool:
    """Return whether the scheme is followed by a path, or by a host and a valid port."""
    if url.startswith(sqlite_file.SCHEME):
        path = url.removeprefix(sqlite_file.SCHEME)
        # SQLite's names for databases without a file: each connection would get its own.
        return bool(path) and "?" not in path and not path.startswith((":", "file:"))
    try:
        parts = urlsplit(url)
        # A PostgreSQL socket is an option: postgresql:///name?host=/run/postgresql
        has_host = parts.hostname or (parts.scheme == "postgresql" and "host=/" in parts.query)
        return url.startswith(f"{parts.scheme}://") and bool(has_host) and parts.port != 0
    except ValueError:
        return False
