"""A response of a checked server, whose errors are those of httpx2."""

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping

import httpcore2
import httpx2


class ResponseBody(httpx2.AsyncByteStream):
    """
    The body of a response; raises the errors of httpx2.

    *release* gives the connection back, after which another request may use it.
    """

    def __init__(self, stream: object, release: Callable[[], None]) -> None:
        self._stream, self._release = stream, release
        self._is_closed = False

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        try:
            if isinstance(self._stream, AsyncIterable):
                async for part in self._stream:
                    yield part
        except CORE_ERRORS as error:
            raise translated(error) from error

    async def aclose(self) -> None:
        """Release the connection, or close it if the body was not read completely."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if hasattr(self._stream, "aclose"):
                await self._stream.aclose()
        finally:
            self._release()


class PinnedResponse:
    """The head of a response, and its body; the caller closes it."""

    def __init__(self, answer: httpcore2.Response, body: ResponseBody) -> None:
        self.status = answer.status
        self.raw_headers = answer.headers
        self.extensions = answer.extensions
        self.body = body

    @property
    def headers(self) -> dict[str, str]:
        """Return the fields by lower-case names; those of one name are joined by commas."""
        return fields_of(self.raw_headers)


def fields_of(raw_headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return header fields by lower-case names (RFC 9110 section 5.3)."""
    fields: dict[str, str] = {}
    for raw_name, raw_value in raw_headers:
        name = raw_name.decode("ascii").lower()
        try:
            value = raw_value.decode()
        except UnicodeDecodeError:
            value = raw_value.decode("iso-8859-1")
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    return fields


TRANSLATED_ERRORS: Mapping[type[Exception], type[httpx2.TransportError]] = {
    httpcore2.TimeoutException: httpx2.TimeoutException,
    httpcore2.ConnectTimeout: httpx2.ConnectTimeout,
    httpcore2.ReadTimeout: httpx2.ReadTimeout,
    httpcore2.WriteTimeout: httpx2.WriteTimeout,
    httpcore2.PoolTimeout: httpx2.PoolTimeout,
    httpcore2.NetworkError: httpx2.NetworkError,
    httpcore2.ConnectError: httpx2.ConnectError,
    httpcore2.ReadError: httpx2.ReadError,
    httpcore2.WriteError: httpx2.WriteError,
    httpcore2.ProtocolError: httpx2.ProtocolError,
    httpcore2.LocalProtocolError: httpx2.LocalProtocolError,
    httpcore2.RemoteProtocolError: httpx2.RemoteProtocolError,
    httpcore2.ProxyError: httpx2.ProxyError,
    httpcore2.UnsupportedProtocol: httpx2.UnsupportedProtocol,
}
CORE_ERRORS = tuple(TRANSLATED_ERRORS)


def translated(error: Exception) -> httpx2.TransportError:
    """Return the httpx2 error for an httpcore2 error."""
    kinds = (TRANSLATED_ERRORS.get(kind) for kind in type(error).__mro__)
    return next(kind for kind in kinds if kind is not None)(str(error))
