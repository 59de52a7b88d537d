"""A server whose tools repeat what they are told, and the forms a secret may be written in."""

import base64
import binascii
import html
import io
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus

import msgspec

from gatepost.telemetry.logs import LogFormat, configure
from tests.rest.conftest import Octopus
from tests.support.client import MODERN, modern
from tests.support.issuers import Idp
from tests.support.measuring import eventually
from tests.support.server import Server, issuer_settings, running_server

Encode = Callable[[str], str]
Decode = Callable[[str], Iterator[str]]


class EncodedForm(msgspec.Struct, frozen=True):
    """One row: *encode* writes a value, *decode* reads whatever could be one out of a text."""

    encode: Encode
    decode: Decode


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def runs(text: str) -> Iterator[bytes]:
    """Each base64 text in a text, from each of the four places where its groups may begin."""
    for run in re.findall(r"[A-Za-z0-9+/_-]{4,}", text):
        for skip in range(4):
            digits = run[skip:].replace("-", "+").replace("_", "/")
            digits = digits[: len(digits) - (len(digits) % 4 == 1)]
            try:
                yield base64.b64decode(digits + "=" * (-len(digits) % 4))
            except binascii.Error:
                continue


def from_base64(text: str) -> Iterator[str]:
    for data in runs(text):
        yield data.decode(errors="replace")
        yield data.decode("utf-16-le", errors="replace")
        yield data[1:].decode("utf-16-le", errors="replace")


def from_wrapped(text: str) -> Iterator[str]:
    yield from from_base64(re.sub(r"\s+", "", text))


def from_base64_twice(text: str) -> Iterator[str]:
    for once in from_base64(text):
        yield from from_base64(once)


def from_json_in_base64(text: str) -> Iterator[str]:
    for once in from_base64(text):
        yield from unescape(once)


def from_hex(text: str) -> Iterator[str]:
    for run in re.findall(r"[0-9A-Fa-f][0-9A-Fa-f: ]{7,}", text):
        digits = re.sub(r"[: ]", "", run)
        for skip in range(2):
            whole = digits[skip : skip + (len(digits) - skip) // 2 * 2]
            yield bytes.fromhex(whole).decode(errors="replace")


def unescape(text: str) -> Iterator[str]:
    """As programs read strings of JSON, wherever one stands."""
    for _ in range(3):
        text = re.sub(
            r"\\(?:u([0-9A-Fa-f]{4})|(.))",
            lambda m: chr(int(m[1], 16)) if m[1] else {"n": "\n", "t": "\t"}.get(m[2], m[2]),
            text,
        )
        text = text.encode("utf-16", errors="surrogatepass").decode("utf-16", errors="replace")
        yield text


def once(decode: Encode) -> Decode:
    def decoded(text: str) -> Iterator[str]:
        yield decode(text)

    return decoded


def twice(decode: Encode) -> Decode:
    return once(lambda text: decode(decode(text)))


def every(pattern: str) -> Encode:
    return lambda value: "".join(pattern % byte for byte in value.encode())


def utf16_units(value: str) -> Iterator[int]:
    wide = value.encode("utf-16-be")
    return (int.from_bytes(wide[at : at + 2], "big") for at in range(0, len(wide), 2))


def mixed_hex(value: str) -> str:
    digits = value.encode().hex()
    return "".join(d.upper() if at % 3 else d for at, d in enumerate(digits))


def wrapped(text: str, columns: int = 19) -> str:
    return "\r\n    ".join(text[at : at + columns] for at in range(0, len(text), columns))


def inner(value: str) -> str:
    return json.dumps(value)[1:-1]


def raw_inner(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)[1:-1]


FORMS: dict[str, EncodedForm] = {
    "as it is": EncodedForm(str, once(str)),
    "base64": EncodedForm(lambda v: b64(v.encode()), from_base64),
    "base64, one byte before": EncodedForm(lambda v: b64(b"u" + v.encode() + b"\n"), from_base64),
    "base64, two bytes before": EncodedForm(
        lambda v: b64(b"a:" + v.encode() + b"rest"), from_base64
    ),
    "base64 for URLs": EncodedForm(
        lambda v: base64.urlsafe_b64encode(v.encode()).decode().rstrip("="), from_base64
    ),
    "base64, wrapped": EncodedForm(lambda v: wrapped(b64(b"{%b}" % v.encode())), from_wrapped),
    "base64, percent-encoded": EncodedForm(
        lambda v: quote(b64(v.encode()), safe=""), lambda t: from_base64(unquote(t))
    ),
    "base64 of JSON": EncodedForm(
        lambda v: b64(json.dumps({"key": v}).encode()), from_json_in_base64
    ),
    "base64 of UTF-16": EncodedForm(lambda v: b64(v.encode("utf-16-le")), from_base64),
    "base64 twice": EncodedForm(lambda v: b64(b64(b"x" + v.encode()).encode()), from_base64_twice),
    "hexadecimal": EncodedForm(lambda v: v.encode().hex(), from_hex),
    "HEXADECIMAL": EncodedForm(lambda v: v.encode().hex().upper(), from_hex),
    "hexaDecImal": EncodedForm(mixed_hex, from_hex),
    "he:xa:de": EncodedForm(lambda v: v.encode().hex(":"), from_hex),
    "HE XA DE": EncodedForm(lambda v: v.encode().hex(" ").upper(), from_hex),
    "percent": EncodedForm(lambda v: quote(v, safe=""), once(unquote)),
    "percent, small digits": EncodedForm(
        lambda v: re.sub("%..", lambda m: m[0].lower(), quote(v)), once(unquote)
    ),
    "form": EncodedForm(quote_plus, once(unquote_plus)),
    "percent, every byte": EncodedForm(every("%%%02x"), once(unquote)),
    "percent twice": EncodedForm(lambda v: quote(quote(v, safe=""), safe=""), twice(unquote)),
    "JSON": EncodedForm(raw_inner, unescape),
    "JSON in ASCII": EncodedForm(inner, unescape),
    "JSON with \\/": EncodedForm(lambda v: inner(v).replace("/", "\\/"), unescape),
    "JSON, every character": EncodedForm(
        lambda v: "".join(f"\\u{unit:04X}" for unit in utf16_units(v)), unescape
    ),
    "json, every character": EncodedForm(
        lambda v: "".join(f"\\u{unit:04x}" for unit in utf16_units(v)), unescape
    ),
    "JSON twice": EncodedForm(lambda v: inner(inner(v)), unescape),
    "JSON three times": EncodedForm(lambda v: inner(inner(inner(v))), unescape),
    "JSON of percent": EncodedForm(
        lambda v: inner(f'"{quote(v)}"')[2:-2], lambda t: (unquote(u) for u in unescape(t))
    ),
    "\\x": EncodedForm(
        every("\\x%02x"),
        once(
            lambda t: re.sub(
                r"\\x([0-9a-f]{2})", lambda m: bytes.fromhex(m[1]).decode("latin-1"), t
            )
        ),
    ),
    "HTML": EncodedForm(html.escape, once(html.unescape)),
    "HTML, decimal": EncodedForm(lambda v: "".join(f"&#{ord(c)};" for c in v), once(html.unescape)),
    "HTML, hexadecimal": EncodedForm(
        lambda v: "".join(f"&#x{ord(c):X};" for c in v), once(html.unescape)
    ),
    "HTML twice": EncodedForm(lambda v: html.escape(html.escape(v)), twice(html.unescape)),
    "over several lines": EncodedForm(wrapped, once(lambda t: re.sub(r"[\r\n]+[ \t]*", "", t))),
}


def leaks(value: str, form: EncodedForm, text: str) -> bool:
    """Whether more than half of *value* in one piece can be read out of *text* in that form."""
    half = len(value) // 2 + 1
    windows = [value[at : at + half] for at in range(len(value) - half + 1)]
    readable = [text, *form.decode(text)]
    return any(window in plain for plain in readable for window in windows)


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


class EchoServer(Server):
    """The server, its tenants' secrets, and every way to make it say something."""

    @cached_property
    def tokens(self) -> dict[str, str]:
        """An agent's token for each tenant."""
        return {name: self.token(org_id=name) for name in (*SECRETS, "bare")}

    def put(self, tenant: str, name: str, value: str) -> None:
        """Set a secret in the running server."""
        self.run(self.services.secrets.put(tenant, name, value))

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
        answer = self.client.send("POST", None, fields, sent, token=self.tokens[tenant])
        return answer.body.decode()

    def call(self, tool: str, *, tenant: str = "acme", **arguments: Any) -> str:
        """A call by MCP."""
        return self.mcp("tools/call", tenant=tenant, name=tool, arguments=arguments)

    def old(self, tool: str, **arguments: Any) -> str:
        """A call within a session of 2025-06-18."""
        client, token = self.client, self.tokens["acme"]
        params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": 1}}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        fields = [("Accept", "application/json, text/event-stream")]
        fields.append(("Mcp-Session-Id", client.open(token)))
        return client.send("POST", None, fields, body.encode(), token=token).body.decode()

    def rest(self, tool: str, *fields: tuple[str, str], **arguments: Any) -> str:
        """A call by plain REST."""
        octopus = Octopus(self, self.tokens["acme"])
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
        return self.client.send("POST", None, fields, body, token=token).body.decode()


@contextmanager
def overheard(form: LogFormat) -> Iterator[io.StringIO]:
    """What the process logs in a block, as the server does it."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    configure(level="debug", form=form)
    stream = io.StringIO()
    for handler in root.handlers:
        assert isinstance(handler, logging.StreamHandler)
        handler.setStream(stream)
    try:
        yield stream
    finally:
        root.handlers = handlers
        root.setLevel(level)


@contextmanager
def opened() -> Iterator[EchoServer]:
    """The server with the secrets of both tenants."""
    settings: Mapping[str, Any] = {
        "tools": {"packs": [], "load": ["tests.secrets.conftest"]},
        "tenancy": {"create_on_first_use": True},
        "log": {"level": "debug"},
    }
    with (
        Idp() as idp,
        running_server(idp, [issuer_settings(idp)], kind=EchoServer, **settings) as server,
    ):
        for tenant, secrets in SECRETS.items():
            for name, value in secrets.items():
                server.put(tenant, name, value)
        yield server


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
