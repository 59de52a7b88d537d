"""A connection of its own for one script that runs for almost every call."""

import asyncio
import time
from collections.abc import Callable, Sequence
from hashlib import sha1
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError

from gatepost.storage.valkey.channels import ANSWER_S

IDLE_S = 1.0
"""After so long without a question, the server may have closed the connection."""


class ScriptConnection:
    """
    Runs one script, one request at a time, within `ANSWER_S`; connects when it is first used.

    The client's pool, its retries and its deadline for each step cost three times as much as the
    exchange itself. *connection* makes a connection without deadlines. No request is sent twice,
    because the script may have run although its answer is lost.
    """

    def __init__(self, script: str, connection: Callable[[], AbstractConnection]) -> None:
        self._script, self._make = script.encode(), connection
        self._digest = sha1(self._script, usedforsecurity=False).hexdigest().encode()
        self._connection: AbstractConnection | None = None
        self._used = 0.0

    async def run(self, keys: Sequence[bytes], argument: bytes) -> Any:
        """Return the script's answer; raises the errors of the client, and TimeoutError."""
        request = (b"%d" % len(keys), *keys, argument)
        is_usable = False
        try:
            async with asyncio.timeout(ANSWER_S):
                connection = await self._ready()
                try:
                    answer = await self._exchange(connection, b"EVALSHA", self._digest, *request)
                except NoScriptError:
                    # It then knows the script by its digest.
                    answer = await self._exchange(connection, b"EVAL", self._script, *request)
            is_usable = True
        except ResponseError as error:
            # After a failover another server writes, and another connection finds it.
            is_usable = not isinstance(error, ReadOnlyError)
            raise
        finally:
            if not is_usable:  # an answer may still come
                await self.aclose()
        self._used = time.monotonic()
        return answer

    async def aclose(self) -> None:
        """Close the connection without waiting for the server; another request opens one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def _ready(self) -> AbstractConnection:
        if self._connection is not None and time.monotonic() - self._used > IDLE_S:
            await self._check(self._connection)
        if self._connection is None:
            self._connection = self._make()
            await self._connection.connect()  # type: ignore[no-untyped-call]  # it has no types
        return self._connection

    async def _check(self, connection: AbstractConnection) -> None:
        """Close a connection that the server has closed meanwhile."""
        try:
            is_lost = await connection.can_read()
        except (ConnectionLost, OSError):
            is_lost = True
        if is_lost:
            await self.aclose()

    @staticmethod
    async def _exchange(connection: AbstractConnection, *parts: bytes) -> Any:
        message = b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
        await connection.send_packed_command(
            b"*%d\r\n%b" % (len(parts), message), check_health=False
        )
        # A script that is not known raises, and leaves the connection as it is.
        return await connection.read_response(disconnect_on_error=False)
