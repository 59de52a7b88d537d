"""A server that speaks TLS, and a client that keeps its connection."""

import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.authz.certificates import Company
from tests.support.client import RawAnswer, modern, request, result
from tests.support.commands import ServerProcess, ended, server_process
from tests.support.issuers import Idp
from tests.support.measuring import eventually
from tests.support.processes import free_port
from tests.support.server import Settings, issuer_settings

WITHIN_S = 30
TOOLS = '''
"""A tool that says whose call it is."""

from gatepost import CallContext, Pack

pack = Pack("again")


@pack.tool(read_only=True)
async def again(ctx: CallContext, note: str = "") -> str:
    """Say whose call this is."""
    return f"{ctx.caller.tenant_id}"
'''
PAGE = "https://app.example.com"
"""Where the page comes from that sends these requests."""


class KeptConnection:
    """One connection over TLS; what comes behind an answer is kept for the next one."""

    def __init__(self, site: ServerProcess, tls: ssl.SSLContext, token: str, **fields: str) -> None:
        plain = socket.create_connection(("127.0.0.1", site.client.port), timeout=WITHIN_S)
        self.socket = tls.wrap_socket(plain, server_hostname="localhost")
        self._site, self._token, self._fields = site, token, fields
        self._rest = b""

    def close(self) -> None:
        self.socket.close()

    def message(self, note: str = "") -> bytes:
        """A call of `again`; its head is the same each time, but for the length."""
        arguments = {"note": note} if note else {}
        named, body = modern("tools/call", {"name": "again", "arguments": arguments})
        own = [("Host", self._site.client.authority), ("Origin", PAGE)]
        own += [(name.replace("_", "-"), value) for name, value in self._fields.items()]
        own += [("Authorization", f"Bearer {self._token}"), ("Content-Type", "application/json")]
        own += [("Content-Length", str(len(body)))]
        return request("POST", self._site.client.path, [*own, *named], body)

    def ask(self, note: str = "") -> RawAnswer:
        """Send it, and read the answer."""
        self.socket.sendall(self.message(note))
        return self.answer()

    def said(self, note: str = "") -> str:
        """Whose call it was."""
        text: str = result(self.ask(note))["content"][0]["text"]
        return text

    def warm(self) -> None:
        """Have a few requests served."""
        for _ in range(3):
            self.said()

    def answer(self) -> RawAnswer:
        """The next answer, which declares its length."""
        while b"\r\n\r\n" not in self._rest:
            self._read()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        fields = [(n.strip().lower(), v.strip()) for n, _, v in (x.partition(":") for x in lines)]
        length = int(dict(fields)["content-length"])
        while len(self._rest) < length:
            self._read()
        body, self._rest = self._rest[:length], self._rest[length:]
        return RawAnswer(int(first.split()[1]), fields, body)

    def _read(self) -> None:
        data = self.socket.recv(65_536)
        if not data:
            raise ConnectionError(f"the server closed after {self._rest!r}")
        self._rest += data

    def until(self, status: int, has: bytes) -> None:
        """Ask until the answer is that, which it has to become."""

        def is_so() -> bool:
            answer = self.ask()
            return answer.status == status and has in answer.body

        eventually(is_so, within=WITHIN_S)


class Secure:
    """The server, and the connections to it."""

    def __init__(self, site: ServerProcess, company: Company, usual: Settings) -> None:
        self.site, self.company, self._usual = site, company, usual
        self.tls = ssl.create_default_context(cafile=str(company.bundle))

    @contextmanager
    def kept(self, token: str = "", **fields: str) -> Iterator[KeptConnection]:
        """A connection on which every head is the same; *fields* join it, `_` written for `-`."""
        one = KeptConnection(self.site, self.tls, token or self.site.token(), **fields)
        try:
            yield one
        finally:
            one.close()

    @contextmanager
    def changed(self, changes: Mapping[str, Any]) -> Iterator[None]:
        """These tables are in force inside the block, by a reload; the usual ones behind it."""
        try:
            self.site.reload(**changes)
            yield
        finally:
            self.site.configured = dict(self._usual)
            self.site.reload()

    def order(self, *words: str) -> str:
        """Have an operator run a command of `gatepost`; what it says."""
        code, told, complaints = ended(*words, cwd=self.site.folder)
        assert code == 0, complaints
        return told


@contextmanager
def secure(idp: Idp, folder: Path) -> Iterator[Secure]:
    """`gatepost serve` with a certificate, until the block ends."""
    company = Company(folder)
    certificate, key = company.certify("localhost")
    port = free_port()
    (folder / "again.py").write_text(TOOLS, encoding="utf-8")
    usual = {
        "resource": f"https://localhost:{port}/mcp",
        "listen": {
            "port": port,
            "drain_s": 10,
            "tls_certificate": certificate,
            "tls_key": key,
            "allowed_origins": [PAGE],
            "trusted_proxies": ["127.0.0.1/32"],
        },
        "tools": {"packs": ["demo"], "load": ["./again.py"]},
        "storage": {"database": "sqlite:///gatepost.db"},
    }
    with server_process(idp, folder, [main(idp), second(idp)], **usual) as site:
        yield Secure(site, company, dict(site.configured))


def main(idp: Idp, **settings: Any) -> Settings:
    """The usual issuer, which gives no time to clocks."""
    return issuer_settings(idp, **{"tenants": {"acme": "acme"}, "leeway_s": 0} | settings)


def second(idp: Idp, **settings: Any) -> Settings:
    """Another one, with tenants of its own."""
    return issuer_settings(idp, "second", **{"tenants": {"two": "two"}, "leeway_s": 0} | settings)
