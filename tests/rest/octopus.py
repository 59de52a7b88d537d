"""Octopus as its protocol page describes it: what it sends, and what it reads of an answer."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tests.rest import kit
from tests.support.client import Fields, RawAnswer
from tests.support.server import Server

KIT = str(Path(kit.__file__))


class Heard(msgspec.Struct):
    """One answer, which is JSON and says so, whatever it is about."""

    status: int
    json: Any
    raw: RawAnswer

    @property
    def error(self) -> tuple[int, str]:
        """Status and stable word; the message is there for the model."""
        assert isinstance(self.json["message"], str)
        assert self.json["message"]
        return self.status, self.json["error"]


class Octopus:
    """An agent of one tenant; *base* is where the routes are."""

    def __init__(self, house: Server, token: str | None = None, *, base: str = "") -> None:
        self.house = house
        self.token = house.token() if token is None else token
        self.base = base

    def health(self) -> Heard:
        return self.send("GET", "/health", token="")

    def tools(self, *fields: tuple[str, str]) -> Heard:
        return self.send("GET", f"{self.base}/tools", fields)

    def names(self) -> list[str]:
        return [tool["name"] for tool in self.tools().json]

    def call(
        self, tool: str, arguments: Mapping[str, Any] | None = None, *fields: tuple[str, str]
    ) -> Heard:
        body = json.dumps(arguments or {}).encode()
        return self.post(tool, body, *fields)

    def post(self, tool: str, body: bytes, *fields: tuple[str, str]) -> Heard:
        return self.send("POST", f"{self.base}/tool/{tool}/call", fields, body)

    def send(
        self,
        method: str,
        path: str,
        fields: Fields = (),
        body: bytes = b"",
        *,
        token: str | None = None,
    ) -> Heard:
        """Any request; every answer of this protocol is JSON (O6)."""
        token = self.token if token is None else token
        raw = self.house.client.send(method, path, fields, body, token=token or None)
        assert raw.field("content-type") == "application/json", raw
        return Heard(raw.status, json.loads(raw.body) if raw.body else None, raw)
