"""A server whose tools repeat whatever they are told, and somebody who listens everywhere."""

import asyncio
import base64
import binascii
import io
import json
import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog

from gatepost.runtime.services import Services
from gatepost.telemetry.logs import LogFormat, configure
from tests.redaction import kit
from tests.rest.octopus import Octopus
from tests.support.client import MODERN, modern
from tests.support.issuers import Idp
from tests.support.measuring import eventually
from tests.support.server import Server, issuer_settings, running_server

META = "io.modelcontextprotocol/"
TASKS = {"extensions": {META + "tasks": {}}, "elicitation": {}}
SECRETS = {
    "acme": {
        "API_KEY": 's3cr3t-Kéy/with"quotes\\\\+%41&x',
        "PIN": "8642753108642753",
        "TOKEN": "correct-horse-battery-staple",
    },
    "zeta": {"OTHER": "zeta-has-another-secret"},
}


class Aviary:
    """The server, its tenants' secrets, and every way to make it say something."""

    def __init__(self, site: Server, loop: asyncio.AbstractEventLoop) -> None:
        self.site, self._loop = site, loop
        self.tokens = {name: site.token(org_id=name) for name in (*SECRETS, "bare")}

    def put(self, tenant: str, name: str, value: str) -> None:
        """Set a secret in the running server."""
        work = self.site.services.secrets.put(tenant, name, value)
        kept: Future[None] = asyncio.run_coroutine_threadsafe(work, self._loop)
        kept.result(5)

    def mcp(self, method: str, *, tenant: str = "acme", **params: Any) -> str:
        """Everything that comes of one request of 2026-07-28, events included."""
        fields, body = modern(method, params)
        asked = json.loads(body)
        asked["params"]["_meta"] |= {
            "progressToken": 1,
            META + "logLevel": "debug",
            META + "clientCapabilities": TASKS,
        }
        sent = json.dumps(asked).encode()
        answer = self.site.client.send("POST", None, fields, sent, token=self.tokens[tenant])
        return answer.body.decode()

    def call(self, tool: str, *, tenant: str = "acme", **arguments: Any) -> str:
        """A call by MCP."""
        return self.mcp("tools/call", tenant=tenant, name=tool, arguments=arguments)

    def old(self, tool: str, **arguments: Any) -> str:
        """A call within a session of 2025-06-18."""
        client, token = self.site.client, self.tokens["acme"]
        params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": 1}}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        fields = [("Accept", "application/json, text/event-stream")]
        fields.append(("Mcp-Session-Id", client.open(token)))
        return client.send("POST", None, fields, body.encode(), token=token).body.decode()

    def rest(self, tool: str, *fields: tuple[str, str], **arguments: Any) -> str:
        """A call by plain REST."""
        octopus = Octopus(self.site, self.tokens["acme"])
        return octopus.call(tool, arguments, *fields).raw.body.decode()

    def task(self, **arguments: Any) -> str:
        """What is shown of a task when it has ended."""
        started = json.loads(self.call("last", **arguments))["result"]
        name = started["task"]["taskId"] if "task" in started else started["taskId"]

        eventually(lambda: '"working"' not in self._about(name), within=10)
        return self._about(name)

    def _about(self, name: str) -> str:
        fields, _ = modern("tasks/get", {"taskId": name})
        meta = {META + "protocolVersion": MODERN, META + "clientCapabilities": TASKS}
        params = {"taskId": name, "_meta": meta}
        asked = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": params}
        body = json.dumps(asked).encode()
        token = self.tokens["acme"]
        return self.site.client.send("POST", None, fields, body, token=token).body.decode()


@contextmanager
def overheard(form: LogFormat) -> Iterator[io.StringIO]:
    """What the process logs in a block, as the server does it."""
    root = logging.getLogger()
    handlers, level, before = root.handlers, root.level, structlog.get_config()
    configure(level="debug", form=form)
    structlog.configure(cache_logger_on_first_use=False)
    stream = io.StringIO()
    for handler in root.handlers:
        assert isinstance(handler, logging.StreamHandler)
        handler.setStream(stream)
    try:
        yield stream
    finally:
        root.handlers = handlers
        root.setLevel(level)
        structlog.configure(**before)


@contextmanager
def opened() -> Iterator[Aviary]:
    """The server with the secrets of both tenants."""
    loops: list[asyncio.AbstractEventLoop] = []

    def prepare(services: Services) -> None:
        loops.append(asyncio.get_running_loop())

    settings: Mapping[str, Any] = {
        "tools": {"packs": [], "load": [str(Path(kit.__file__))]},
        "tenancy": {"create_on_first_use": True},
        "log": {"level": "debug"},
    }
    with (
        Idp() as idp,
        running_server(idp, [issuer_settings(idp)], prepare=prepare, **settings) as site,
    ):
        aviary = Aviary(site, loops[0])
        for tenant, secrets in SECRETS.items():
            for name, value in secrets.items():
                aviary.put(tenant, name, value)
        yield aviary


def texts(answer: str) -> str:
    """All strings and names of an answer or of its events, and what is in base64 in them."""
    found: list[str] = []
    lines = [line.removeprefix("data:") for line in answer.splitlines()]
    for line in lines:
        if line.strip().startswith(("{", "[")):
            _gather(json.loads(line), found)
    return "\n~\n".join(found)


def _gather(value: Any, found: list[str]) -> None:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            found.append(name)
            _gather(inner, found)
    elif isinstance(value, list):
        for inner in value:
            _gather(inner, found)
    elif value is not None:
        found.append(str(value))
        try:
            found.append(base64.b64decode(str(value), validate=True).decode(errors="replace"))
        except (binascii.Error, ValueError):
            return
