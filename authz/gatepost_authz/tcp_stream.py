"""Open TCP connections of the event loop for httpcore2, at a third of the cost of anyio's."""

import asyncio
import select
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import httpcore2

BUFFERED_BYTES = 65_536
"""From this number of unread bytes on, no more bytes are received."""
NOT_CONNECTED = (httpcore2.ConnectError, httpcore2.ConnectTimeout, httpcore2.ProxyError)
"""The errors after which the next address of a name is tried."""
SIDES = {"client_addr": "sockname", "server_addr": "peername"}
"""The names of properties in httpcore2, and in asyncio."""

Stream = TypeVar("Stream")


class TcpStream(asyncio.Protocol, httpcore2.AsyncNetworkStream):
    """One connection; one task reads and one writes at a time, as httpcore2 does."""

    def __init__(self, source: asyncio.Transport | None = None) -> None:
        """
        Wrap *source*, the connection below TLS, whose reading is paused.
        """
        # Not the transport of TLS, because uvloop's drops its buffer if the peer closes meanwhile.
        self._source: Any = source
        self._parts: deque[bytes] = deque()
        self._size = 0
        self._is_over = self._is_paused = False
        self._error: Exception | None = None
        self._arrival: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        """Pending while the peer does not read."""

    # The side of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the open connection; the loop calls this without TLS, `start_tls` with it."""
        self._transport: Any = transport
        self._source = self._source or transport

    def data_received(self, data: bytes) -> None:
        """Keep what arrived, and stop the arrival of more if much was not read."""
        self._parts.append(data)
        self._size += len(data)
        if self._size >= BUFFERED_BYTES and not self._is_paused and not self._source.is_closing():
            self._is_paused = True
            self._source.pause_reading()
        _wake(self._arrival)

    def eof_received(self) -> None:
        """Note that nothing more arrives."""
        self._is_over = True
        _wake(self._arrival)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection is closed, and why."""
        self._is_over, self._error = True, exc
        _wake(self._arrival)
        _wake(self._writable)

    def pause_writing(self) -> None:
        """Let `write` wait, because the peer does not read."""
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """Let `write` return."""
        _wake(self._writable)
        self._writable = None

    # The side of httpcore2.

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return at most *max_bytes* that arrived, b"" at the end; raises httpcore2's errors."""
        if not self._parts and not self._is_over:
            self._arrival = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(timeout):
                    await self._arrival
            except TimeoutError as error:
                raise httpcore2.ReadTimeout(str(error)) from error
            finally:
                self._arrival = None
        if self._parts:
            return self._take(max_bytes)
        if self._error is not None:
            raise httpcore2.ReadError(str(self._error)) from self._error
        return b""

    def _take(self, max_bytes: int) -> bytes:
        data = self._parts.popleft()
        if len(data) > max_bytes:
            self._parts.appendleft(data[max_bytes:])
            data = data[:max_bytes]
        self._size -= len(data)
        if self._is_paused and self._size < BUFFERED_BYTES:
            self._is_paused = False
            if not self._source.is_closing():
                self._source.resume_reading()
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send bytes, and wait while the peer does not read; raises httpcore2's errors."""
        if not buffer:
            return
        if self._transport.is_closing():
            raise httpcore2.WriteError("the connection is closed")
        self._transport.write(buffer)
        if self._writable is not None:
            try:
                async with asyncio.timeout(timeout):
                    await asyncio.shield(self._writable)
            except TimeoutError as error:
                raise httpcore2.WriteTimeout(str(error)) from error
        if self._error is not None:
            raise httpcore2.WriteError(str(self._error)) from self._error

    async def aclose(self) -> None:
        """Close the connection, also if the peer does not read what was written."""
        # Without waiting: a request that is cancelled closes its connection, and if it were
        # cancelled again meanwhile, the connection would stay open.
        self._transport.close()
        # The connection below: TLS within TLS may have ended only the inner one.
        asyncio.get_running_loop().call_soon(self._source.abort)

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Return the stream above TLS; raises ConnectError or ConnectTimeout."""
        encrypted = TcpStream(self._source)
        try:
            if self._parts:
                raise ssl.SSLError("the server spoke before TLS")
            if self._is_over:
                raise ConnectionResetError("the server closed the connection before TLS")
            if not (server_hostname or "").encode("idna"):
                # Python would accept the certificate of any server.
                raise ssl.SSLError("TLS needs the name of the server")
            async with asyncio.timeout(timeout):
                transport = await asyncio.get_running_loop().start_tls(
                    self._transport, encrypted, ssl_context, server_hostname=server_hostname
                )
        except TimeoutError as error:
            self._source.abort()
            raise httpcore2.ConnectTimeout(str(error)) from error
        except (OSError, TypeError, ValueError) as error:
            # An SSLError, or an invalid name. A TypeError is that of asyncio in Python 3.11.7 and
            # 3.12.1 if TLS within TLS fails (python/cpython issue 113214).
            self._source.abort()
            raise httpcore2.ConnectError(str(error)) from error
        except asyncio.CancelledError:
            self._source.abort()
            raise
        if transport is None:
            raise httpcore2.ConnectError("the connection was closed")
        encrypted.connection_made(transport)
        return encrypted

    def get_extra_info(self, info: str) -> Any:
        """
        Return a property of the connection.

        `is_readable` says of an idle connection that the peer has closed it. The socket itself is
        asked: a busy loop may not have noticed yet, and a request on a closed connection is lost.
        """
        if info == "is_readable":
            return bool(self._parts) or self._is_over or _is_readable(self._transport)
        return self._transport.get_extra_info(SIDES.get(info, info))


async def connect_tcp(address: str, port: int, timeout: float | None) -> TcpStream:
    """Connect to an IP address; raises ConnectError or ConnectTimeout."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            _, stream = await loop.create_connection(TcpStream, address, port)
    except TimeoutError as error:
        raise httpcore2.ConnectTimeout(str(error)) from error
    except OSError as error:
        raise httpcore2.ConnectError(str(error)) from error
    return stream


async def connect_first(
    addresses: Sequence[str],
    connect: Callable[[str, float | None], Awaitable[Stream]],
    share_s: float | None,
) -> Stream:
    """
    Return the stream to the first of *addresses* that can be reached, by *connect*.

    Each but the last is tried for *share_s*; raises the error of the last.
    """
    for address in addresses[:-1]:
        with suppress(*NOT_CONNECTED):
            return await connect(address, share_s)
    return await connect(addresses[-1], None)


def _is_readable(transport: Any) -> bool:
    connection = transport.get_extra_info("socket")
    # uvloop's has no socket any more if its loop was closed.
    number = -1 if connection is None else connection.fileno()
    if number < 0:
        return True
    looking = select.poll()
    looking.register(number, select.POLLIN)
    return bool(looking.poll(0))


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
