"""Gatepost with the controls off and on for one caller, beside a floor with answers of a size."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import contestants, gatepost, wrk
from bench.gatepost import free_port
from bench.issuer import BenchIssuer
from bench.probe import NotAnswering, first_answer, line_printed
from bench.process import BenchProcess, Cores, usage
from bench.servers.settings import Settings
from bench.tokens import Mint
from bench.workload import PATH, WORKLOADS, BenchEndpoint

START_S = 60
CONTROLS: Mapping[str, str] = {"off": gatepost.OFF, "on": gatepost.ON}


@dataclass(frozen=True)
class ControlledServer:
    """A server that answers, as the load finds it."""

    pid: int
    endpoint: BenchEndpoint


@dataclass(frozen=True)
class ServerCost:
    """One interval of one server."""

    cpu_us: float
    """CPU microseconds for each answer."""
    account: wrk.Account


class ControlsSite:
    """The servers of a run; both Gateposts are one resource, so that they accept one token."""

    def __init__(
        self, folder: Path, issuer: BenchIssuer, tools: str, settings: Mapping[str, str]
    ) -> None:
        """Prepare for servers of these *tools* (a module), with *settings* of the environment."""
        self.folder, self._issuer, self._settings = folder, issuer, settings
        self.cores = Cores.choose()
        self._port = free_port()
        self._resource = f"http://127.0.0.1:{self._port}{PATH}"
        mint = Mint.create(issuer.url, self._resource)
        issuer.key_set = mint.key_set
        self.token = mint.token(0)
        self.token_file = folder / "token"
        self.token_file.write_text(f"{self.token}\n", encoding="ascii")
        self._tools = folder / "bench_tools.py"
        self._tools.write_text(tools, encoding="utf-8")

    @contextmanager
    def gate(self, controls: str) -> Iterator[ControlledServer]:
        """Run Gatepost with the controls off or on."""
        folder = self.folder / controls
        folder.mkdir()
        settings = Settings(
            self._port, self._issuer.url, self._issuer.jwks_uri, self._resource, 0, {}
        )
        config = gatepost.write_config(
            settings, folder, further_files=[self._tools], controls=CONTROLS[controls]
        )
        launch = contestants.serve(config)
        port = free_port()
        env = {**launch.env, **self._settings, "GATEPOST_LISTEN__PORT": str(port)}
        process = self._started(folder, launch.command, env)
        try:
            line_printed(process, "Gatepost is ready at", limit_s=START_S)
            yield ControlledServer(
                process.pid, BenchEndpoint(port, PATH, f"127.0.0.1:{self._port}")
            )
        finally:
            process.stop()

    @contextmanager
    def floor(self, name: str, answer_bytes: int) -> Iterator[ControlledServer]:
        """Run the bare server, which answers as many bytes as Gatepost does."""
        folder = self.folder / f"floor-{name}"
        folder.mkdir()
        sizes = dict.fromkeys(("call", "document", "progress", "list", "refusal"), answer_bytes)
        port = free_port()
        launch = contestants.module("floor")(
            Settings(port, "", "", self._resource, 0, sizes), folder
        )
        process = self._started(folder, launch.command, launch.env)
        endpoint = BenchEndpoint(port, "/call", f"127.0.0.1:{port}")
        try:
            first_answer(process, endpoint, WORKLOADS[0], self.token, limit_s=START_S)
            yield ControlledServer(process.pid, endpoint)
        finally:
            process.stop()

    def cost(
        self,
        server: ControlledServer,
        script: str,
        seconds: int,
        *,
        connections: int,
        threads: int = 1,
    ) -> ServerCost:
        """Return what an interval of the load cost; raises NotAnswering."""
        path = self.folder / "calls.lua"
        path.write_text(script, encoding="utf-8")
        before = usage(server.pid).cpu_s
        account = wrk.load(
            f"http://{server.endpoint.address}",
            path,
            seconds=seconds,
            cores=self.cores,
            connections=connections,
            threads=threads,
        )
        cpu_s = usage(server.pid).cpu_s - before
        if account.failed or account.refused or not account.requests:
            raise NotAnswering(str(account))
        return ServerCost(cpu_s / account.requests * 1e6, account)

    def _started(self, folder: Path, command: list[str], env: Mapping[str, str]) -> BenchProcess:
        log = folder / "output.log"
        return BenchProcess.start(command, log=log, cores=self.cores, env=env)
