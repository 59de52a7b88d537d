"""A connection of its own for one script that runs for almost every call."""

import asyncio
from collections.abc import Callable, Sequence
from hashlib import sha1

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import InvalidResponse, NoScriptError, ReadOnlyError, ResponseError

from gatepost.storage.valkey.channels import ANSWER_S

ERRORS = {b"NOSCRIPT": NoScriptError, b"READONLY": ReadOnlyError}


class ScriptConnection:
    """
    Runs one script, one request at a time, within `ANSWER_S`; connects when it is first used.

    The script answers text. The client opens and authenticates the connection. After that the
    script uses the socket directly, because the client's pool, retries, deadlines and parser cost
    five times as much as the exchange itself. *connection* makes a connection without deadlines. No
    request is sent twice, because the script may have run although its answer is lost.
    """

    def __init__(self, script: str, connection: Callable[[], AbstractConnection]) -> None:
        self._script, self._make = script.encode(), connection
        self._digest = sha1(self._script, usedforsecurity=False).hexdigest().encode()
        self._connection: AbstractConnection | None = None
        self._exchange = _ScriptReply()

    async def run(self, keys: Sequence[bytes], argument: bytes) -> bytes:
        """Return the script's answer; raises the errors of the client, and TimeoutError."""
        request = (b"%d" % len(keys), *keys, argument)
        is_usable = False
        try:
            async with asyncio.timeout(ANSWER_S):
                if self._connection is None or self._exchange.is_lost:
                    await self._connect()
                try:
                    answer = await self._exchange.ask(b"EVALSHA", self._digest, *request)
                except NoScriptError:
                    # From now on the server knows the script by its digest.
                    answer = await self._exchange.ask(b"EVAL", self._script, *request)
            is_usable = True
        except ResponseError as error:
            # After a failover another server accepts writes, and a new connection finds it.
            is_usable = not isinstance(error, ReadOnlyError)
            raise
        finally:
            if not is_usable:  # an answer may still arrive
                await self.aclose()
        return answer

    async def aclose(self) -> None:
        """Close the connection without waiting for the server; another request opens one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def _connect(self) -> None:
        await self.aclose()
        self._connection, self._exchange = self._make(), _ScriptReply()
        await self._connection.connect()  # type: ignore[no-untyped-call]  # the method has no types
        assert self._connection._writer is not None  # noqa: S101  # `connect` has set it
        self._exchange.begin(self._connection._writer.transport)


class _ScriptReply(asyncio.Protocol):
    """Sends one command at a time, and reads its answer: text, or an error."""

    def __init__(self) -> None:
        self.is_lost = False
        self._received = b""
        self._answer: asyncio.Future[bytes] | None = None

    def begin(self, transport: asyncio.WriteTransport) -> None:
        """Take a connection over from the client, after its last answer."""
        self._transport = transport
        transport.set_protocol(self)

    async def ask(self, *parts: bytes) -> bytes:
        """Return the answer to a command; raises the errors of the client."""
        if self.is_lost:
            raise ConnectionLost
        message = [b"*%d\r\n" % len(parts)]
        message += [b"$%d\r\n%b\r\n" % (len(part), part) for part in parts]
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(b"".join(message))
        return await self._answer

    def data_received(self, data: bytes) -> None:
        """Implement `asyncio.Protocol`."""
        received = self._received = self._received + data
        head, end, remaining = received.partition(b"\r\n")
        if not end:
            return
        if received.startswith(b"-"):
            word = head[1:].partition(b" ")[0]
            # Log the name of the error, because its text may contain what was sent.
            self._set_answer(ERRORS.get(word, ResponseError)())
        elif not received.startswith(b"$") or not head[1:].isdigit():
            self._set_answer(InvalidResponse())
        elif len(remaining) >= (size := int(head[1:])) + 2:
            self._set_answer(remaining[:size])

    def connection_lost(self, error: Exception | None) -> None:
        """Implement `asyncio.Protocol`."""
        self.is_lost = True
        self._set_answer(ConnectionLost())

    def _set_answer(self, answer: bytes | Exception) -> None:
        waiter, self._answer, self._received = self._answer, None, b""
        if waiter is None or waiter.done():
            self.is_lost = True  # an answer without a request
        elif isinstance(answer, bytes):
            waiter.set_result(answer)
        else:
            waiter.set_exception(answer)
