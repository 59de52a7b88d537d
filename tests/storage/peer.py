"""
A second process at the same stores, driven line by line: `python -m tests.storage.peer`.

Each line it reads is a JSON array of a database's URL, a job's name and its arguments; each line it
prints is the job's answer. A database is opened by the first job that names it.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from gatepost.storage.backends import open_records
from gatepost.storage.records import Records
from gatepost.telemetry.logs import configure
from tests.storage.samples import approval, idempotency_record, outbox_message, task

FOREVER = 1e9


async def begin(records: Records, holder: str, keys: list[str]) -> list[str]:
    """Claim every key, all at once; those that are this process's now."""
    idempotency = records.of("acme").idempotency

    async def one(key: str) -> str | None:
        met = await idempotency.begin(idempotency_record(key=key.encode(), holder=holder), now=0.0)
        return key if met is None else None

    return [key for key in await asyncio.gather(*map(one, keys)) if key is not None]


async def subscribe(records: Records, names: list[str]) -> int:
    """Add every name to one session, all at once, each by its own reading; how many tries."""
    sessions, tries = records.of("acme").sessions, 0

    async def one(name: str) -> None:
        nonlocal tries
        while True:
            tries += 1
            read = await sessions.get(b"s")
            more = msgspec.structs.replace(read, subscriptions=(*read.subscriptions, name))
            if await sessions.replace(b"s", more, expires_at=FOREVER):
                return

    await asyncio.gather(*map(one, names))
    return tries


async def take_over(records: Records, holder: str, keys: list[str]) -> list[str]:
    """Take over every record of the holder `gone`; those that are this process's now."""
    idempotency = records.of("acme").idempotency

    async def one(key: str) -> str | None:
        was = idempotency_record(key=key.encode(), holder="gone")
        mine = await idempotency.take_over(
            idempotency_record(key=key.encode(), holder=holder), was=was
        )
        return key if mine else None

    return [key for key in await asyncio.gather(*map(one, keys)) if key is not None]


async def win(records: Records, holder: str, keys: list[str]) -> list[str]:
    """Put every entry that was read at its first revision; those that this process put."""
    entries = records.of("acme").entries("race")

    async def one(key: str) -> str | None:
        return key if await entries.put(key, holder.encode(), now=0.0, revision=1) else None

    return [key for key in await asyncio.gather(*map(one, keys)) if key is not None]


async def write_always(records: Records) -> None:
    """Keep task after task, and say of each that it is kept, until killed."""
    tasks, idempotency = records.of("acme").tasks, records.of("acme").idempotency
    entries = records.of("acme").entries("kept")
    number = 0
    while True:
        number += 1
        await tasks.create(task(id=f"t{number}", call=b"x" * 500))
        await idempotency.begin(idempotency_record(key=b"k%d" % number), now=0.0)
        await idempotency.finish(b"k%d" % number, "h1", b"done %d" % number, FOREVER)
        await entries.put("latest", b"%d" % number, now=0.0)
        print(number, flush=True)  # noqa: T201  # this is how it talks


async def ask_always(records: Records) -> None:
    """Open request after request, each with its message, and say so, until killed."""
    approvals = records.of("acme").approvals
    number = 0
    while True:
        number += 1
        name = f"a{number}"
        kept = approval(id=name, binding=name.encode())
        await approvals.open(kept, outbox_message(id=f"m{number}", ordering_key=name))
        print(number, flush=True)  # noqa: T201  # this is how it talks


JOBS: dict[str, Callable[..., Awaitable[Any]]] = {
    job.__name__: job for job in (begin, subscribe, take_over, win, write_always, ask_always)
}


async def main() -> None:
    """Do what is asked until the input ends."""
    # Its standard output is for answers alone.
    configure(level="info", form="json")
    opened: dict[str, Records] = {}
    while line := await asyncio.to_thread(sys.stdin.readline):
        url, name, *arguments = json.loads(line)
        if url not in opened:
            opened[url] = await open_records(url)
        print(json.dumps(await JOBS[name](opened[url], *arguments)), flush=True)  # noqa: T201
    for records in opened.values():
        await records.aclose()


if __name__ == "__main__":
    # What is logged is none of its answers.
    configure(level="info", form="console")
    asyncio.run(main())
