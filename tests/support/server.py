"""Gatepost in this process: as `gatepost serve` composes it, or a runner with limits alone."""

import asyncio
import io
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

import msgspec
from pydantic import Field
from starlette.types import ASGIApp

from gatepost import CallContext, Outcome, Pack, ToolFailure
from gatepost.app import build_app
from gatepost.check.pack_loading import Toolbox, load
from gatepost.check.problems import problems
from gatepost.config.settings import Config
from gatepost.http.deadlines import Deadlines
from gatepost.http.httptools_protocol import HttptoolsProtocol
from gatepost.policy.limits.rules import Bound, LimitRules
from gatepost.policy.limits.stage import LimitStage
from gatepost.runtime.http_server import GatepostServer, bind, listen_config
from gatepost.runtime.services import Services, SourceOf
from gatepost.runtime.startup import opened
from gatepost.runtime.stores import keyring_of
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.shared_store import SharedStore
from gatepost.telemetry.access import AccessLog
from gatepost.telemetry.metrics import Meter
from gatepost.telemetry.shared_memory import SharedMetrics
from gatepost.tools.calls.registry import Registry
from gatepost.tools.calls.runner import Runner
from gatepost.tools.calls.stage import Stage
from gatepost.tools.context.client import NO_CLIENT, Client, InputRequest, SilentClient, Waiting
from gatepost.tools.offers.offer import Call
from gatepost_authz.caller import TenantContext
from gatepost_authz.config import Problem
from tests.support import issuers as f
from tests.support.client import ResourceClient
from tests.support.endpoint import a_caller
from tests.support.issuers import Idp, TokenFactory, rsa_key
from tests.support.runners import WITHIN_S, context, run_ready

START_S, ANSWER_S, STOP_S = 10, 60, 15
SAMPLE_TOOLS = __name__
ACME = {"claim": "org_id"}
Settings = dict[str, Any]
T = TypeVar("T")
S = TypeVar("S", bound="Server")

recorder = Pack("recorder")
CALLS: list[TenantContext] = []
"""The callers whose calls reached these tools, in this process."""


@recorder.tool(read_only=True)
async def record_call(ctx: CallContext) -> str:
    """Record that a caller called."""
    CALLS.append(ctx.caller)
    return "recorded"


@recorder.tool(scopes={"files:write"})
async def record_write(ctx: CallContext) -> str:
    """Record that a caller who may write called."""
    CALLS.append(ctx.caller)
    return "written"


@recorder.tool(scopes={"files:read"})
async def record_read(ctx: CallContext) -> str:
    """Record that a caller who may read called."""
    CALLS.append(ctx.caller)
    return "read"


@recorder.tool(acr_values=("phr",), max_age_s=300)
async def record_strong(ctx: CallContext) -> str:
    """Record that a caller who signed in strongly and lately called."""
    CALLS.append(ctx.caller)
    return "strong"


@recorder.tool(read_only=True)
async def record_routed(
    ctx: CallContext,
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})],
    data: dict[str, Any],
) -> str:
    """Record that a caller called in a region that proxies route by."""
    CALLS.append(ctx.caller)
    return region


class Server:
    """
    A running server that a test can look into: its services, a client, and everything it logs.

    *idp* holds the issuers that its configuration trusts. *prepare* may change the services before
    they serve. *source_of* returns what tenants have beside the configuration.
    """

    services: Services
    idp: Idp
    loop: asyncio.AbstractEventLoop
    run_loop = staticmethod(asyncio.run)

    def __init__(
        self,
        config: Config,
        toolbox: Toolbox,
        sock: socket.socket,
        *,
        parser: type[asyncio.Protocol] = HttptoolsProtocol,
        keyring: KeyRing | None = None,
        prepare: Callable[[Services], object] | None = None,
        build: Callable[[Config, Services], ASGIApp] = build_app,
        idp: Idp | None = None,
        source_of: SourceOf | None = None,
    ) -> None:
        self.config, self.toolbox, self.sock, self.parser = config, toolbox, sock, parser
        self.keyring = keyring or KeyRing.ephemeral()
        self._prepare, self._source_of = prepare, source_of
        self.shared_metrics = SharedMetrics()
        self._build = build
        self.lines = io.BytesIO()
        self.client = ResourceClient(config.resource)
        if idp is not None:
            self.idp = idp
        self.ready = threading.Event()
        self.server: GatepostServer | None = None

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        meter = Meter(self.shared_metrics.of_process(0))
        meter.start(now=time.time())
        async with opened(
            self.config, self.toolbox, self.keyring, meter, self._source_of
        ) as services:
            self.services = services
            services.log = AccessLog(
                "json",
                self.lines.write,
                clean=services.redaction.clean,
                counts=services.request_metrics,
            )
            if self._prepare is not None:
                self._prepare(services)
            app = self._build(self.config, services)
            settings = listen_config(app, Deadlines(drain_s=5), protocol=self.parser)
            self.server = GatepostServer(
                settings, on_ready=self.ready.set, on_drain=services.streams.close
            )
            await self.server.serve(sockets=[self.sock])

    def log(self) -> str:
        """Return everything the server has written so far."""
        return self.lines.getvalue().decode()

    @contextmanager
    def running(self: S) -> Iterator[S]:
        """Serve for the time of a block; starting and stopping are bounded."""
        handler = logging.StreamHandler(io.TextIOWrapper(self.lines, write_through=True))
        logging.getLogger().addHandler(handler)
        thread = threading.Thread(target=lambda: self.run_loop(self._serve()), daemon=True)
        thread.start()
        try:
            assert self.ready.wait(START_S), "the server did not start in time"
            yield self
        finally:
            if self.server is not None:
                self.server.should_exit = True
            thread.join(STOP_S)
            logging.getLogger().removeHandler(handler)
            assert not thread.is_alive(), "the server did not stop in time"

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the server's own loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(ANSWER_S)

    def tokens(self, issuer: str = "main", *, tenant: str = "") -> TokenFactory:
        """Return the tokens of one issuer for the resource, or for the resource of one tenant."""
        return TokenFactory(
            self.idp.issuer(issuer), self.client.resource.replace("{tenant}", tenant)
        )

    def token(self, issuer: str = "main", *, tenant: str = "", **claims: Any) -> str:
        return self.tokens(issuer, tenant=tenant).token(**claims)

    def tenant_of(self, token: str) -> str | None:
        """Return the tenant that the call of this token ran for; None if it was refused."""
        before = len(CALLS)
        answer = self.client.call(token)
        if answer.status == 401:
            assert len(CALLS) == before
            return None
        assert answer.status == 200, answer
        assert len(CALLS) == before + 1
        return CALLS[-1].tenant_id

    @contextmanager
    def nothing_runs(self) -> Iterator[None]:
        """Assert that no tool runs inside the block."""
        before = len(CALLS)
        yield
        assert len(CALLS) == before, "a tool ran"


def issuer_settings(idp: Idp, name: str = "main", **settings: Any) -> Settings:
    """Return an `[[issuers]]` table of an issuer that signs with the main key."""
    url = idp.issuer(name, [f.jwk(rsa_key())])
    return {"issuer": url, "tenant": ACME} | settings


def configuration(
    port: int, issuers: list[Settings], path: str = "/mcp", **settings: Any
) -> Settings:
    """Return a whole configuration for this machine."""
    usual = {
        "resource": f"http://127.0.0.1:{port}{path}",
        "mode": "development",
        "issuers": issuers,
        "tenancy": {"create_on_first_use": False},
        "tools": {"packs": ["demo"], "load": [SAMPLE_TOOLS]},
        "storage": {"database": "memory:"},
        "limits": {"failures_per_second": 0, "requests_per_second": 0},
    }
    # Most tests are about what tools do, not about who lets them.
    approvals = {"destructive": "run"} | settings.get("approvals", {})
    return usual | settings | {"approvals": approvals}


def check_problems(issuers: list[Settings], path: str = "/mcp", **settings: Any) -> list[Problem]:
    """Return what `gatepost check` finds in that configuration."""
    config = msgspec.convert(configuration(8000, issuers, path, **settings), Config)
    return list(problems(config, load(config.tools, config.packs, config.network)))


def check_errors(issuers: list[Settings], path: str = "/mcp", **settings: Any) -> list[str]:
    """Return the ids of the errors that keep that configuration from being served."""
    return [one.id for one in check_problems(issuers, path, **settings) if one.level == "error"]


@contextmanager
def running_server(
    idp: Idp,
    issuers: list[Settings],
    path: str = "/mcp",
    *,
    kind: type[S] = Server,  # type: ignore[assignment]
    checked: bool = True,
    keyring: KeyRing | None = None,
    parser: type[asyncio.Protocol] = HttptoolsProtocol,
    prepare: Callable[[Services], object] | None = None,
    source_of: SourceOf | None = None,
    **settings: Any,
) -> Iterator[S]:
    """Serve that configuration, in which `gatepost check` finds no error (unless told)."""
    sock: socket.socket = bind("127.0.0.1", 0)
    config = msgspec.convert(
        configuration(sock.getsockname()[1], issuers, path, **settings), Config
    )
    toolbox = load(config.tools, config.packs, config.network)
    found = [one for one in problems(config, toolbox) if one.level == "error"]
    assert bool(found) is not checked, found
    server = kind(
        config,
        toolbox,
        sock,
        parser=parser,
        keyring=keyring or keyring_of(config),
        prepare=prepare,
        idp=idp,
        source_of=source_of,
    )
    with server.running():
        yield server


def bucket(burst: float, rate: float = 0.001) -> Bound:
    """Return a bucket that hardly refills while a test runs."""
    return Bound(rate, burst)


def concurrency_limit(most: int) -> Bound:
    return Bound(concurrency=most)


class DecidingClient(SilentClient):
    """A client whose person answers when ``decided`` is set; ``asked`` says that it was asked."""

    capabilities: Mapping[str, Any] = {"elicitation": {"url": {}}}

    def __init__(self) -> None:
        self.asked, self.decided = asyncio.Event(), asyncio.Event()

    async def request(
        self, requests: Mapping[str, InputRequest], *, state: bytes = b""
    ) -> Mapping[str, Mapping[str, Any]]:
        self.asked.set()
        await self.decided.wait()
        return {key: {"action": "accept", "content": {}} for key in requests}

    async def wait_for_decision(self, waiting: Waiting) -> None:
        self.asked.set()
        await self.decided.wait()


class LimitedProcess:
    """
    One process. Tools: `wait` and `hold` run until ``gate`` is set, `fail` fails, `ask` asks a
    person and then waits for the gate, `other` calls `wait`, and `look` just answers.
    """

    def __init__(
        self, rules: LimitRules, shared_store: SharedStore | None = None, **settings: Any
    ) -> None:
        self.now = 0.0
        self.limits = LimitStage(shared_store, monotonic=lambda: self.now)
        self.limits.apply(rules, **settings)
        self.gate = asyncio.Event()
        self.ran: Counter[str] = Counter()
        self.tasks: list[asyncio.Task[str]] = []
        self._registry = Registry(self._pack().tools.values())
        self.put_behind()

    def put_behind(self, *stages: Stage) -> None:
        """Have these stages between the limits and the tool."""
        self.runner = Runner(
            self._registry,
            context_for=context,
            stages=(self.limits, *stages),
            timeout_s=WITHIN_S,
        )

    def _pack(self) -> Pack:
        pack = Pack("process")

        async def wait(ctx: CallContext) -> str:
            self.ran[f"wait {ctx.caller.tenant_id}"] += 1
            await self.gate.wait()
            return "waited"

        async def look(ctx: CallContext) -> str:
            self.ran["look"] += 1
            return "seen"

        async def fail(ctx: CallContext) -> str:
            raise ToolFailure("denied", "No.")

        async def ask(ctx: CallContext) -> str:
            answer = await ctx.ask_url("May I?", "https://pages.example.com/may-i")
            self.ran["asked"] += 1
            await self.gate.wait()
            return answer.action

        async def other(ctx: CallContext) -> Outcome:
            call = Call(
                caller=ctx.caller, name="look", arguments=b"{}", request_id="inner", depth=1
            )
            return await self.runner.run(call)

        for function in (wait, look, fail, ask, other):
            function.__doc__ = "A tool."
            pack.tool()(function)
        pack.tool(name="hold")(wait)
        return pack

    async def call(self, tool: str = "look", *, client: Client = NO_CLIENT, **caller: Any) -> str:
        """Make a call; return its text, or the kind of its failure with the limit that refused."""
        call = Call(
            caller=a_caller(**caller),
            name=tool,
            arguments=b"{}",
            request_id="request-1",
            client=client,
        )
        async with asyncio.timeout(WITHIN_S):
            outcome = await self.runner.run(call)
        if outcome.failure is None:
            return str(outcome.content[0]["text"])
        return f"{outcome.failure.kind} {outcome.failure.limit}"

    async def begin(self, tool: str = "wait", **call: Any) -> "asyncio.Task[str]":
        """Begin a call; it runs or has ended when this returns."""
        task = asyncio.create_task(self.call(tool, **call))
        self.tasks.append(task)
        await run_ready()
        return task

    async def end(self) -> list[str]:
        """Open the gate; return the outcomes of the calls that `begin` began."""
        self.gate.set()
        return await asyncio.gather(*self.tasks)
