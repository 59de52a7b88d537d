"""`gatepost stdio`: serve one caller over standard input and output."""

import asyncio
import signal
import time
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import click
import uvloop

from gatepost.app import challenge_of, mcp
from gatepost.check.pack_loading import LoadedPacks
from gatepost.check.stdio import NOT_FOR_STDIO, problems
from gatepost.cli.configuration import checked_configuration, config_option
from gatepost.config.settings import STDIO, Config
from gatepost.mcp.jsonrpc import INVALID_REQUEST, JsonRpcError
from gatepost.mcp.pipes import LineReader, Pipes
from gatepost.mcp.stdio import Stdio
from gatepost.runtime import interpreter
from gatepost.runtime.startup import opened
from gatepost.runtime.stores import keyring_of
from gatepost.secrets.keyring import KeyRing, KeyRingError
from gatepost.storage.errors import StoreRefused, StoreUnavailable
from gatepost.telemetry.logs import configure
from gatepost_authz.caller import TenantContext
from gatepost_authz.protected_resource import Resource
from gatepost_authz.scopes import Implications

TOKEN_LIFETIME_S = 100_000_000
"""Three years, because no token expires here."""


@click.command()
@config_option
def stdio(path: Path) -> None:
    """
    Serve MCP over standard input and output, for the caller named in `[stdio]`.

    The server stops when the client closes the pipe or at SIGTERM. Running calls finish first.
    """
    # Claim the pipes first, because tool files may print when they are loaded.
    pipes = Pipes.claim()
    config, loaded_packs = checked_configuration(
        path, ignored=NOT_FOR_STDIO, also=partial(problems, required=True)
    )
    configure(level=config.log.level, form=config.log.format)
    try:
        keyring = keyring_of(config)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(config, loaded_packs, keyring, pipes))
    except (KeyRingError, StoreRefused, StoreUnavailable) as error:
        raise click.ClickException(str(error)) from None


def caller_of(config: Config, *, now: float) -> TenantContext:
    """Return the caller named in `[stdio]`."""
    configured = config.stdio
    return TenantContext(
        tenant_id=configured.tenant,
        issuer=STDIO,
        subject=configured.subject,
        subject_kind="user",
        resource=config.resource.replace("{tenant}", configured.tenant),
        expires_at=int(now) + TOKEN_LIFETIME_S,
        scopes=Implications(config.scopes.implied).expand(frozenset(configured.scopes)),
        roles=frozenset(configured.roles),
    )


async def _serve(config: Config, loaded_packs: LoadedPacks, keyring: KeyRing, pipes: Pipes) -> None:
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)

    async def write(line: bytes) -> None:
        if not await pipes.write(line):
            over.set()

    async with opened(config, loaded_packs, keyring) as services:
        resource = Resource(config.resource)
        caller = caller_of(config, now=time.time())
        endpoint = mcp(config, services, resource, challenge_of(config), mirrors=False)
        path = urlsplit(caller.resource).path or "/"
        protocol = Stdio(endpoint, caller=caller, path=path, write=write)
        interpreter.configure()
        reading = asyncio.create_task(_read(pipes, protocol, config.limits.max_body_bytes))
        await _first(reading, over=over)
        if not (reading.done() and over.is_set()):
            over.clear()
        within_s = config.listen.drain_s
        services.streams.stopping.set()
        services.task_runner.drain(within_s)
        ending = protocol.finish(within_s, end_streams=services.streams.close)
        # After a second reason to end (two signals, or a signal and a closed pipe) do not wait.
        # Until then the client's answers to requests are still read.
        reasons = [] if reading.done() else [reading]
        await _first(asyncio.create_task(ending), *reasons, over=over)
        await protocol.stop()
        if reading.done():
            reading.result()  # nothing, unless reading failed
        reading.cancel()


async def _read(pipes: Pipes, protocol: Stdio, limit: int) -> None:
    lines = LineReader(limit)
    too_long = JsonRpcError(INVALID_REQUEST, f"The message is longer than {limit} bytes")

    async for chunk in pipes.chunks():
        for line in lines.split(chunk):
            await (protocol.take(line) if isinstance(line, bytes) else protocol.refuse(too_long))
    for line in lines.unfinished_line():
        await (protocol.take(line) if isinstance(line, bytes) else protocol.refuse(too_long))


async def _first(*tasks: "asyncio.Task[None]", over: asyncio.Event) -> None:
    """Wait until one of the tasks is done or *over* is set."""
    waiting = asyncio.create_task(over.wait())
    await asyncio.wait({*tasks, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
