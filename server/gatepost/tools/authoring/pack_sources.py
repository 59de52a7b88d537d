"""The common part of packs of an OpenAPI description, a FastAPI app and a FastMCP server."""

import re
from collections.abc import Collection, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict

import msgspec

from gatepost.config.pack_registration import registrations
from gatepost.tools.offers.offer import Tool
from gatepost_authz.challenge import words

ALL_OFFERS = "*"
"""The key of the scopes of all offers that are not named."""
NOT_IN_A_NAME = re.compile(r"[^a-z0-9]+")

Scopes = Collection[str] | Mapping[str, Collection[str]]
"""The scopes of all offers, or those of each by its name or URI."""
HttpMethod = Literal["get", "put", "post", "delete", "options", "head", "patch", "trace"]


class OperationOptions(TypedDict, total=False):
    """Which operations of an API become tools."""

    tags: tuple[str, ...]
    """Only operations with one of these tags."""
    paths: tuple[str, ...]
    """Only paths that match one of these patterns (`/pets/*`)."""
    methods: tuple[HttpMethod, ...]
    """Only these methods, in lower case."""
    prefix: str
    """Prefix of the tools' names."""
    timeout_s: float
    """Seconds that the API may take to answer."""


class ApiOptions(OperationOptions, total=False):
    """The same options for an API of another server, and the credentials that are sent there."""

    base_url: str
    """Base URL of the API; default: the server in its description."""
    auth: str
    """The tenant's secret that calls are sent with, as `secret:NAME`."""
    auth_header: str
    """The header that carries the secret; default: `Authorization`."""
    auth_scheme: str
    """The scheme before it in that header, for example `Bearer`."""
    credential: str
    """Instead of `auth`: the `[credentials.NAME]` table that calls are signed in with."""


class FastApiApp(Protocol):
    """A FastAPI app, as far as it is used."""

    router: Any
    title: str

    def openapi(self) -> dict[str, Any]:
        """Return the app's description."""


class GivenAccess:
    """
    The scopes and approvals that an author's file gives to the offers of a pack.

    Raises TypeError for a text instead of a collection, and ValueError for an invalid scope.
    """

    def __init__(self, pack: str, scopes: Scopes, approval: Collection[str]) -> None:
        self._pack, self._scopes, self._approval = pack, scopes, approval
        each = scopes.values() if isinstance(scopes, Mapping) else (scopes,)
        if any(isinstance(collection, str) for collection in (*each, approval)):
            raise TypeError(f"pack {pack}: scopes and approval are collections of texts")
        for collection in each:
            words(collection)

    def scopes_of(self, key: str) -> frozenset[str]:
        """Return the scopes of the offer with that name or URI."""
        if not isinstance(self._scopes, Mapping):
            return frozenset(self._scopes)
        return frozenset(self._scopes.get(key, self._scopes.get(ALL_OFFERS, ())))

    def needs_approval(self, tool: str) -> bool:
        """Return whether each call of the tool needs an approval."""
        return tool in self._approval

    def guard(self, tools: dict[str, Tool]) -> None:
        """Give the tools their scopes and approvals; raises ValueError as `check` does."""
        self.check(tools)
        for key, tool in tools.items():
            tools[key] = msgspec.structs.replace(
                tool, scopes=self.scopes_of(key), approval=self.needs_approval(key)
            )

    def check(self, tools: Iterable[str], other_names: Iterable[str] = ()) -> None:
        """
        Raise ValueError if a name is unknown, or if an offer was left out.

        A misspelt or forgotten name would leave an offer open to every caller.
        """
        known_tools = {*tools}
        known_names = {*known_tools, *other_names}
        configured = {*self._scopes} if isinstance(self._scopes, Mapping) else known_names
        if unknown := {*self._approval} - known_tools | configured - known_names - {ALL_OFFERS}:
            raise ValueError(
                f"pack {self._pack}: there is no {', '.join(sorted(unknown))}; "
                f"it has {', '.join(sorted(known_names))}"
            )
        if ALL_OFFERS not in configured and (left_out := known_names - configured):
            raise ValueError(
                f"pack {self._pack}: scopes leaves out {', '.join(sorted(left_out))}; name each, "
                f'or all others as "{ALL_OFFERS}"; () is for every caller'
            )


def pack_name(name: str, source: object) -> str:
    """Return the name that was given, or one made of the source's; raises ValueError for none."""
    derived = NOT_IN_A_NAME.sub("_", str(source or "").lower()).strip("_")[:64]
    if not (name or derived):
        raise ValueError("the source has no name of which one for a pack can be made; pass name=")
    return name or derived


def title_of(document: Mapping[str, Any] | Path | str) -> object:
    """Return what an OpenAPI description is called: its title, or the name of its file."""
    if isinstance(document, Mapping):
        info = document.get("info")
        return info.get("title") if isinstance(info, Mapping) else None
    return Path(document).stem


def openapi_maker(function: str) -> Any:
    """Return a function of the pack that makes packs in code; RuntimeError if there is none."""
    registered = (pack.registration.in_code for pack in registrations().packs.values())
    entry_point = next(filter(None, registered), None)
    if entry_point is None:
        raise RuntimeError("no installed distribution registers a pack that makes packs in code")
    return getattr(import_module(entry_point), function)
