"""`python -m bench --sizes`: what a call costs with a document of 1 KiB to 4 MiB in and out."""

import base64
import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from bench import wrk
from bench.controls import CONTROLS, ControlledServer, ControlsSite
from bench.probe import NotAnswering, ask
from bench.replicas import Measurement
from bench.report import number, table
from bench.workload import Workload

KIB = 1024
SIZES = (KIB, 16 * KIB, 64 * KIB, 1024 * KIB, 4096 * KIB)
CONNECTIONS = 4
MAX_BYTES = "40000000"
SETTINGS = {
    "GATEPOST_TOOLS__MAX_RESULT_BYTES": MAX_BYTES,
    "GATEPOST_LIMITS__MAX_BODY_BYTES": MAX_BYTES,
    "GATEPOST_LIMITS__MAX_BODY_VALUES": MAX_BYTES,
}
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


def run(measurement: Measurement) -> list[SizeRow]:
    """Measure each document with the floor and both Gateposts in turn, several times."""
    rows: list[SizeRow] = []
    site = ControlsSite(measurement.folder, measurement.issuer, TOOLS, SETTINGS)
    site.cores.pin_load(0)
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
                with site.floor(name, len(answer.body)) as floor:
                    costs = [
                        [
                            _cost(site, server, workload, measurement.seconds)
                            for server in (floor, *gates)
                        ]
                        for _ in range(measurement.rounds)
                    ]
                rows.append(SizeRow(kind, size, *map(min, zip(*costs, strict=True))))
                measurement.report_progress(f"{size // KIB:,} KiB of {kind}: done")
    return rows


def _cost(site: ControlsSite, server: ControlledServer, workload: Workload, seconds: int) -> float:
    script = wrk.script(workload, server.endpoint, site.token_file)
    return site.cost(server, script, seconds, connections=CONNECTIONS).cpu_us


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
