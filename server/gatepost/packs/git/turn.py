"""One git that writes at a time in a workspace, whichever process runs it."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gatepost.tools.api import ToolFailure

WAIT_S = 20.0
EVERY_S = 0.02


@asynccontextmanager
async def turn(home: Path) -> AsyncIterator[None]:
    """
    Hold the tenant's turn; ToolFailure when others hold it for too long.

    What was checked (a remote's address, the configuration) must still be so when git reads it.
    """
    handle = os.open(home / "turn", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    if _taken(handle):
                        break
                    await asyncio.sleep(EVERY_S)
        except TimeoutError:
            message = "Another git command still runs in this workspace. Try again."
            raise ToolFailure("upstream_unavailable", message, retry_after=5) from None
        yield
    finally:
        os.close(handle)  # which also ends the turn


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
