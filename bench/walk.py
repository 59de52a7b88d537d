"""`python -m bench --walk`: the files and functions of ours that one call goes through."""

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any, TypeVar
from urllib.parse import urlsplit

import gatepost
import gatepost_authz
from bench.gatepost import ON, free_port, write_config
from bench.issuer import running
from bench.servers import soak_tools
from bench.servers.settings import Settings
from bench.soak import APPROVALS
from bench.tokens import Mint
from bench.traffic import BenchTraffic
from bench.workload import PATH, BenchEndpoint, by_name
from gatepost import serve
from gatepost.cli.configuration import examine
from gatepost.policy.approvals.approval_request import Operator
from gatepost.runtime import startup
from gatepost.runtime.http_server import bind
from gatepost.runtime.server_setup import ServerSetup
from gatepost.runtime.services import Services
from gatepost.runtime.stores import keyring_of
from gatepost.telemetry.access import COLLECTED_S

T = TypeVar("T")

ROOTS = {
    f"{Path(package.__file__ or '').resolve().parent}{os.sep}": package.__name__
    for package in (gatepost, gatepost_authz)
}
RUNS = frozenset({soak_tools.sign.__code__})
"""The tool that waits for approval."""
WARM_UP, CALLS, APPROVED = 20, 5, 16
LIMIT_S = 60
TENANT = "tenant-0"
WRITTEN_S = 10 * COLLECTED_S
"""Seconds after which the log lines and metrics of a call are surely written."""
TURNS = 3
"""Rounds of the event loop in which everything ends that an answer has made ready."""


@dataclass(frozen=True)
class WalkFiles:
    """What runs for one request, each as `file` or `file function`."""

    functions: frozenset[str]

    @property
    def files(self) -> frozenset[str]:
        """Return the files of these functions."""
        return frozenset(name.partition(" ")[0] for name in self.functions)


@dataclass(frozen=True)
class Walks:
    """
    The walks that are counted.

    ``approval`` goes from the call that asks for approval to the tool's first line; ``approved``
    goes on to the answer.
    """

    call: WalkFiles
    approval: WalkFiles
    approved: WalkFiles


class WalkRecorder:
    """
    A profile function that notes which code begins or goes on while it is recording.

    When the tool begins, ``before_run`` has what was noted until then.
    """

    def __init__(self) -> None:
        self._codes: set[CodeType] | None = None
        self.before_run: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        codes = self._codes
        if codes is not None and event == "call":
            codes.add(frame.f_code)
            if frame.f_code in RUNS:
                self.before_run = set(codes)

    @contextmanager
    def recording(self, into: set[CodeType]) -> Iterator[None]:
        """Note what runs in a block, in all threads."""
        self._codes = into
        try:
            yield
        finally:
            self._codes = None


def always(recordings: Iterable[set[CodeType]]) -> WalkFiles:
    """Return what every recording has: background tasks run during some of them only."""
    return WalkFiles(frozenset(filter(None, map(name_of, set.intersection(*recordings)))))


def name_of(code: CodeType) -> str | None:
    """Return `package/file.py function:line`; None if the code is not ours."""
    if code.co_name in {"<module>", "<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"}:
        return None  # a part of the function that holds it
    for root, package in ROOTS.items():
        if code.co_filename.startswith(root):
            file = code.co_filename.removeprefix(root)
            return f"{package}/{file} {code.co_qualname}:{code.co_firstlineno}"
    return None


class WalkCaller:
    """Sends requests to the server from a thread of its own."""

    def __init__(self, recorder: WalkRecorder, mint: Mint) -> None:
        self._recorder = recorder
        self._token = mint.token(0)
        self._parts = urlsplit(mint.resource)
        self.loop: asyncio.AbstractEventLoop
        self.services: Services
        self.walks: Walks | BaseException | None = None

    def run(self) -> None:
        """Walk both ways, then stop the server."""
        try:
            call = always(self._calls())
            approval_walks, approved_walks = zip(*self._approvals(), strict=True)
            self.walks = Walks(call, always(approval_walks), always(approved_walks))
        except BaseException as error:  # noqa: BLE001  # raised where the server was started
            self.walks = error
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    def _calls(self) -> Iterator[set[CodeType]]:
        """Call over one connection with one token, as the workload `warm` does."""
        (workload,) = by_name(["warm"])
        endpoint = BenchEndpoint(self._parts.port or 80)
        fields = workload.headers(endpoint) | {"Authorization": f"Bearer {self._token}"}
        fields["Content-Length"] = str(len(workload.body))
        lines = [f"POST {self._parts.path} HTTP/1.1", *(f"{n}: {v}" for n, v in fields.items())]
        request = "\r\n".join([*lines, "", ""]).encode() + workload.body
        with socket.create_connection(("127.0.0.1", endpoint.port), LIMIT_S) as connection:
            for number in range(WARM_UP + CALLS):
                codes: set[CodeType] = set()
                with self._recorder.recording(codes):
                    # In one packet: a body that comes later goes another way.
                    connection.sendall(request)
                    answer = HTTPResponse(connection)
                    answer.begin()
                    body = answer.read()
                    self._let_server_finish()
                if problem := workload.misread(answer.status, body):
                    raise RuntimeError(problem)
                if number >= WARM_UP:
                    yield codes

    def _approvals(self) -> Iterator[tuple[set[CodeType], set[CodeType]]]:
        """Yield what ran before each run, and until its answer."""
        for number in range(1 + APPROVED):
            # The log and the metrics of the call before are written in batches.
            self._on_server_loop(asyncio.sleep(WRITTEN_S))
            codes = asyncio.run(self._approved(f"document {number}"))
            if number:
                yield self._recorder.before_run, codes

    async def _approved(self, text: str) -> set[CodeType]:
        """Call on an open connection, approve the call while it waits, and read its answer."""
        address = (self._parts.hostname or "", self._parts.port or 80)
        traffic = BenchTraffic(address, self._parts.netloc, self._parts.path, self._token)
        codes: set[CodeType] = set()
        params = {"name": "sign", "arguments": {"text": text}}
        await traffic.connect()
        self._let_server_finish()
        with self._recorder.recording(codes):
            connection = await traffic.begin("tools/call", params, progressToken="p")
            await (await connection.head()).event()
            self._let_server_finish()
        approvals = self.services.approvals
        (request,) = self._on_server_loop(approvals.waiting(TENANT))
        with self._recorder.recording(codes):
            self._on_server_loop(
                approvals.approve(TENANT, request.id, Operator("bench"), seen_digest=request.digest)
            )
            answer = await connection.answer()
            self._let_server_finish()
        connection.close()
        if answer.get("result", {}).get("isError", True):
            raise RuntimeError(f"the approved call answered {answer}")
        return codes

    def _on_server_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(LIMIT_S)

    def _let_server_finish(self) -> None:
        """Wait until the server has done what follows an answer at once."""

        async def turns() -> None:
            for _ in range(TURNS):
                await asyncio.sleep(0)

        self._on_server_loop(turns())


def run() -> Walks:
    """Serve in this process and thread until both walks are known; only once in a process."""
    recorder = WalkRecorder()
    with TemporaryDirectory(prefix="bench-") as folder, running() as issuer:
        port = free_port()
        mint = Mint.create(issuer.url, f"http://127.0.0.1:{port}{PATH}")
        issuer.key_set = mint.key_set
        settings = Settings(port, issuer.url, issuer.jwks_uri, mint.resource, tools=0, sizes={})
        tools = [Path(soak_tools.__file__)]
        path = write_config(settings, Path(folder), further_files=tools, controls=ON + APPROVALS)
        caller = WalkCaller(recorder, mint)
        threading.setprofile(recorder)
        sys.setprofile(recorder)
        try:
            _serve(path, port, caller)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    if not isinstance(caller.walks, Walks):
        raise RuntimeError("the walks were not completed") from caller.walks
    return caller.walks


def _serve(path: Path, port: int, caller: WalkCaller) -> None:
    config, loaded_packs, problems = examine(path)
    if config is None:
        raise RuntimeError(str(problems))
    thread = threading.Thread(target=caller.run)

    class WalkServices(Services):
        """The server's services, which the caller decides with."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            caller.services, caller.loop = self, asyncio.get_running_loop()

    with replaced(WalkServices):
        setup = ServerSetup(
            config=config,
            loaded_packs=loaded_packs,
            keyring=keyring_of(config),
            sock=bind("127.0.0.1", port),
        )
        serve.run(setup, thread.start)
    thread.join()


@contextmanager
def replaced(kind: type[Services]) -> Iterator[None]:
    """Let the server make services of this class."""
    startup.Services = kind  # type: ignore[misc,attr-defined]
    try:
        yield
    finally:
        startup.Services = Services  # type: ignore[misc,attr-defined]


def render(walks: Walks, *, with_functions: bool = False) -> str:
    """Return the figures; with *with_functions*, the functions, too."""
    lines = []
    for title, walk in (
        ("warm tools/call, socket to answer", walks.call),
        ("approval, asking to the run", walks.approval),
        ("approved, asking to the answer", walks.approved),
    ):
        lines.append(f"{title}: {len(walk.files)} files, {len(walk.functions)} functions")
        if with_functions:
            lines += [f"  {name}" for name in sorted(walk.functions)]
    return "\n".join(lines)
