"""`python -m bench --sizes`: what a call costs with a document of 1 KiB to 4 MiB in and out."""

import base64
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import contestants, gatepost, wrk
from bench.gatepost import free_port
from bench.issuer import BenchIssuer
from bench.probe import NotAnswering, ask, first_answer, line_printed
from bench.process import BenchProcess, Cores, usage
from bench.report import number, table
from bench.servers.settings import Settings
from bench.tokens import Mint
from bench.workload import PATH, WORKLOADS, BenchEndpoint, Workload

START_S = 60
KIB = 1024
SIZES = (KIB, 16 * KIB, 64 * KIB, 1024 * KIB, 4096 * KIB)
CONNECTIONS = 4
MAX_BYTES = 40_000_000
CONTROLS: Mapping[str, str] = {"off": gatepost.OFF, "on": gatepost.ON}
TOOLS = '''\
"""A tool that takes a document and gives it back."""

from gatepost import CallContext, Pack

pack = Pack("documents")


@pack.tool(read_only=True)
async def repeat(ctx: CallContext, text: str) -> str:
    """Give a document back."""
    return text
'''


def prose(size: int) -> str:
    """Return lines of text; each break is an escape in JSON."""
    return ("A line of a document, as agents send and read them: many.\n" * (size // 58 + 1))[:size]


def rows(size: int) -> str:
    """Return a JSON document within a text: each of its quotation marks is an escape."""
    row = {"id": 12345, "name": "A row of a table", "tags": ["a", "b"], "total": 12.5}
    return json.dumps([row] * max(1, size // (len(json.dumps(row)) + 2)))


def digits(size: int) -> str:
    """Return random bytes in base64."""
    return base64.b64encode(random.Random(1).randbytes(size * 3 // 4)).decode()


KINDS: Mapping[str, Callable[[int], str]] = {"text": prose, "JSON": rows, "base64": digits}


@dataclass(frozen=True)
class SizeRow:
    """CPU microseconds of a call with one document, the lowest of each server's intervals."""

    kind: str
    size: int
    floor_us: float
    off_us: float
    on_us: float


@dataclass(frozen=True)
class SizedServer:
    """A server that answers, as the load finds it."""

    pid: int
    endpoint: BenchEndpoint


class SizeSite:
    """The servers of a run; both Gateposts are one resource, so that they accept one token."""

    def __init__(self, folder: Path, issuer: BenchIssuer, cores: Cores) -> None:
        self.folder, self._issuer, self._cores = folder, issuer, cores
        self._port = free_port()
        self._resource = f"http://127.0.0.1:{self._port}{PATH}"
        mint = Mint.create(issuer.url, self._resource)
        issuer.key_set = mint.key_set
        self.token = mint.token(0)
        (folder / "token").write_text(f"{self.token}\n", encoding="ascii")
        (folder / "documents.py").write_text(TOOLS, encoding="utf-8")

    @contextmanager
    def gate(self, controls: str) -> Iterator[SizedServer]:
        """Run Gatepost with the controls off or on."""
        folder = self.folder / controls
        folder.mkdir()
        settings = Settings(
            self._port, self._issuer.url, self._issuer.jwks_uri, self._resource, 0, {}
        )
        config = gatepost.write_config(
            settings,
            folder,
            further_files=[self.folder / "documents.py"],
            controls=CONTROLS[controls],
        )
        launch = contestants.serve(config)
        port = free_port()
        env = {
            "GATEPOST_LISTEN__PORT": str(port),
            "GATEPOST_TOOLS__MAX_RESULT_BYTES": str(MAX_BYTES),
            "GATEPOST_LIMITS__MAX_BODY_BYTES": str(MAX_BYTES),
            "GATEPOST_LIMITS__MAX_BODY_VALUES": str(MAX_BYTES),
        }
        log = folder / "output.log"
        process = BenchProcess.start(
            launch.command, log=log, cores=self._cores, env={**launch.env, **env}
        )
        try:
            line_printed(process, "Gatepost is ready at", limit_s=START_S)
            yield SizedServer(process.pid, BenchEndpoint(port, PATH, f"127.0.0.1:{self._port}"))
        finally:
            process.stop()

    @contextmanager
    def floor(self, workload: Workload, answer_bytes: int) -> Iterator[SizedServer]:
        """Run the bare server, which answers as many bytes as Gatepost does."""
        folder = self.folder / f"floor-{workload.name}"
        folder.mkdir()
        sizes = dict.fromkeys(("call", "document", "progress", "list", "refusal"), answer_bytes)
        port = free_port()
        launch = contestants.module("floor")(
            Settings(port, "", "", self._resource, 0, sizes), folder
        )
        process = BenchProcess.start(
            launch.command, log=folder / "output.log", cores=self._cores, env=launch.env
        )
        endpoint = BenchEndpoint(port, "/call", f"127.0.0.1:{port}")
        try:
            first_answer(process, endpoint, WORKLOADS[0], self.token, limit_s=START_S)
            yield SizedServer(process.pid, endpoint)
        finally:
            process.stop()

    def cost(self, server: SizedServer, workload: Workload, seconds: int) -> float:
        """Return the CPU microseconds of a call over an interval; raises NotAnswering."""
        script = self.folder / "calls.lua"
        script.write_text(
            wrk.script(workload, server.endpoint, self.folder / "token"), encoding="utf-8"
        )
        before = usage(server.pid).cpu_s
        account = wrk.load(
            f"http://{server.endpoint.address}",
            script,
            seconds=seconds,
            cores=self._cores,
            connections=CONNECTIONS,
        )
        if account.failed or account.refused or not account.requests:
            raise NotAnswering(f"{workload.name}: {account}")
        return (usage(server.pid).cpu_s - before) / account.requests * 1e6


def run(
    site: SizeSite, rounds: int, seconds: int, say: Callable[[str], object] = print
) -> list[SizeRow]:
    """Measure each document with the floor and both Gateposts in turn, several times."""
    rows: list[SizeRow] = []
    with ExitStack() as stack:
        gates = [stack.enter_context(site.gate(controls)) for controls in CONTROLS]
        for kind, make in KINDS.items():
            for size in SIZES:
                name = f"{kind}-{size}"
                workload = Workload(
                    name, name, "tools/call", "one", text=make(size), other_tool="repeat"
                )
                answer = ask(gates[0].endpoint, workload, site.token)
                if problem := workload.misread(answer.status, answer.body):
                    raise NotAnswering(f"{name}: {problem[:300]}")
                with site.floor(workload, len(answer.body)) as floor:
                    costs = [
                        [site.cost(server, workload, seconds) for server in (floor, *gates)]
                        for _ in range(rounds)
                    ]
                rows.append(SizeRow(kind, size, *map(min, zip(*costs, strict=True))))
                say(f"{size // KIB:,} KiB of {kind}: done")
    return rows


def render(rows: Sequence[SizeRow]) -> str:
    """Render the lowest costs, as other load only adds to them, with their growth."""
    head = ["", "floor µs", "off µs", "ratio", "µs a KiB", "on µs", "ratio", "µs a KiB"]
    lines = []
    for row in rows:
        cells = [f"{row.size // KIB:,} KiB of {row.kind}", number(row.floor_us, 0)]
        for us in (row.off_us, row.on_us):
            cells += [number(us, 0), number(row.floor_us / us, 2), number(us / row.size * KIB, 1)]
        lines.append(cells)
    return table(head, lines)


def save(rows: Sequence[SizeRow], machine: dict[str, object], path: Path) -> None:
    """Write the rows as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine, "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
