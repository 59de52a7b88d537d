"""The server's own secrets, which no result may contain."""

from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from gatepost.config.references import REFERENCE, UnresolvedReference, resolve
from gatepost.config.settings import Config

NAME = "GATEPOST"
MIN_CHARACTERS = 8
"""
Minimum length: shorter secrets, and passwords equal to user or host names, occur in any text.
"""


def own_secrets(config: Config, references: Iterable[str] = ()) -> dict[str, str]:
    """
    Return the values of all references and the passwords in URLs, each with a name.

    *references* are further ones, from files that the configuration names.
    """
    secrets = [*_addressed(config), *_referred([msgspec.to_builtins(config), *references])]
    values = [value for value in dict.fromkeys(secrets) if len(value) >= MIN_CHARACTERS]
    return {f"{NAME}.{at}" if at else NAME: value for at, value in enumerate(values)}


def _addressed(config: Config) -> Iterator[str]:
    for url in (config.storage.database, config.storage.shared):
        yield from _password(url)


def _referred(node: Any, name: str = "") -> Iterator[str]:
    if isinstance(node, dict):
        for key, inner in node.items():
            yield from _referred(inner, key)
    elif isinstance(node, list | tuple):
        for inner in node:
            yield from _referred(inner, name)
    elif isinstance(node, str) and name != "ring" and REFERENCE.match(node):
        try:
            value = resolve(node)
        except UnresolvedReference:
            return  # reported where the setting is used
        yield value
        yield from _password(value)


def _password(url: str) -> Iterator[str]:
    if "://" not in url:
        return
    try:
        parts = urlsplit(url)
        passwords = [unquote(parts.password or ""), *parse_qs(parts.query).get("password", [])]
    except ValueError:
        return
    for password in passwords:
        if password and password not in (parts.username, parts.hostname, parts.path.strip("/")):
            yield password
            yield url
