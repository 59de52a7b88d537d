"""Check the fields of a server or an agent that a person asks to add or change."""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gatepost.upstreams.fields import (
    InvalidField,
    checked_api_key,
    checked_description,
    checked_headers,
    checked_name,
    checked_url,
)
from gatepost.upstreams.upstream_server import Status
from gatepost_authz.address_policy import ToolAddressPolicy

PROGRAM = ("command", "args", "env")
MAX_CLIENT_ID = 255
MAX_WORD = 64
MAX_CAPABILITIES = 200
CAPABILITY = re.compile(r"(?:mcp|pack):[\x21-\x7e]{1,255}", re.ASCII)


class ServerChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a server; those that are UNSET stay as they are."""

    name: str | UnsetType = UNSET
    url: str | UnsetType = UNSET
    description: str | UnsetType | None = UNSET
    transport_type: Literal["http"] | UnsetType = UNSET
    api_key: str | UnsetType | None = UNSET
    """None removes the key."""
    headers: Mapping[str, str] | UnsetType | None = UNSET
    """All headers; a stored header that is not among them is removed."""
    status: Status | UnsetType = UNSET

    def __repr__(self) -> str:
        return "<ServerChanges>"

    def checked(self, address_policy: ToolAddressPolicy) -> "ServerChanges":
        """Return these changes with headers by lower-case names; raises InvalidField."""
        if isinstance(self.name, str):
            checked_name(self.name)
        if isinstance(self.url, str):
            checked_url(self.url, address_policy)
        if isinstance(self.description, str):
            checked_description(self.description)
        if isinstance(self.api_key, str):
            checked_api_key(self.api_key)
        if self.headers is UNSET:
            return self
        return msgspec.structs.replace(self, headers=checked_headers(self.headers or {}))


class AgentChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of an agent; those that are UNSET stay as they are."""

    name: str | UnsetType = UNSET
    description: str | UnsetType | None = UNSET
    icon: str | UnsetType | None = UNSET
    category: str | UnsetType | None = UNSET
    client_id: str | UnsetType | None = UNSET
    mode: Literal["list", "search"] | UnsetType = UNSET
    capabilities: tuple[Mapping[str, Any], ...] | UnsetType = UNSET
    """Objects with the member `ref`."""

    def checked(self) -> "AgentChanges":
        """Return these changes; raises InvalidField."""
        if isinstance(self.name, str):
            checked_name(self.name)
        if isinstance(self.description, str):
            checked_description(self.description)
        limits = {"icon": MAX_WORD, "category": MAX_WORD, "client_id": MAX_CLIENT_ID}
        for field, max_chars in limits.items():
            value = getattr(self, field)
            if isinstance(value, str) and (len(value) > max_chars or not value.isprintable()):
                raise InvalidField(
                    field, f"The field {field} has at most {max_chars} printable characters."
                )
        self.references()
        return self

    def references(self) -> tuple[str, ...]:
        """Return the capabilities that the agent gets, each once; raises InvalidField."""
        if self.capabilities is UNSET:
            return ()
        if len(self.capabilities) > MAX_CAPABILITIES:
            message = f"An agent has at most {MAX_CAPABILITIES} capabilities."
            raise InvalidField("capabilities", message)
        references = []
        for capability in self.capabilities:
            reference = capability.get("ref")
            if not isinstance(reference, str) or not CAPABILITY.fullmatch(reference):
                raise InvalidField(
                    "capabilities",
                    'Each capability is an object such as {"ref": "mcp:ID"} or '
                    '{"ref": "pack:NAME"}. GET /v1/capabilities lists them.',
                )
            references.append(reference)
        return tuple(dict.fromkeys(references))


def server_changes(body: Mapping[str, Any]) -> ServerChanges:
    """Return the changes in a JSON object; raises InvalidField."""
    for member in PROGRAM:
        if member in body:
            raise InvalidField(
                member,
                "A program (stdio) runs on the machine of the server, so only its operator can add "
                "it, in the configuration. Servers that are added here have a `url`.",
            )
    _check_fields(body, ServerChanges)
    if body.get("transport_type", "http") != "http":
        raise InvalidField("transport_type", 'The only transport type is "http".')
    changes: ServerChanges = _converted(body, ServerChanges)
    return changes


def agent_changes(body: Mapping[str, Any]) -> AgentChanges:
    """Return the changes in a JSON object; raises InvalidField."""
    _check_fields(body, AgentChanges)
    changes: AgentChanges = _converted(body, AgentChanges)
    return changes


def _check_fields(body: Mapping[str, Any], kind: type[msgspec.Struct]) -> None:
    fields = kind.__struct_fields__
    for name in body:
        if name not in fields:
            matches = difflib.get_close_matches(name, fields, n=1, cutoff=0.5)
            hint = (
                f"Did you mean {matches[0]}?" if matches else f"The fields are: {_listed(fields)}."
            )
            raise InvalidField(_printable(name), f"There is no field {_printable(name)}. {hint}")


def _converted(body: Mapping[str, Any], kind: type[msgspec.Struct]) -> Any:
    """Return *body* as *kind*; the error names the field and repeats no value."""
    for name, value in body.items():
        try:
            msgspec.convert({name: value}, kind, strict=True)
        except msgspec.ValidationError as error:
            reason = str(error).partition(" - at ")[0].lower().replace("`", "")
            raise InvalidField(name, f"The field {name} cannot be used: {reason}.") from None
    return msgspec.convert(body, kind, strict=True)


def _printable(name: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in name[:60])


def _listed(fields: Iterable[str]) -> str:
    return ", ".join(fields)
