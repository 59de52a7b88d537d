"""Send the dashboard's answers."""

from collections.abc import Sequence

from starlette.types import Send

from gatepost.dashboard.page import PageResponse
from gatepost.dashboard.security_headers import HTML, NO_STORE
from gatepost_authz.headers import HeaderField


class ResponseSender:
    """Send one answer; *head* leaves out the body."""

    def __init__(self, send: Send, *, head: bool = False) -> None:
        self.send = send
        self._head = head

    async def html(self, status: int, html: str, extra_headers: Sequence[HeaderField] = ()) -> None:
        """Send a page, or a part of a page."""
        await self._whole(status, HTML, html.encode("utf-8", "replace"), extra_headers)

    async def redirect(self, location: str, extra_headers: Sequence[HeaderField] = ()) -> None:
        """Redirect to *location*, which is ASCII, by GET."""
        await self._whole(303, HTML, b"", [(b"location", location.encode("ascii")), *extra_headers])

    async def file(self, answer: PageResponse, extra_headers: Sequence[HeaderField] = ()) -> None:
        """Send a file for download, never to be shown in the browser."""
        name = "".join(c for c in answer.file_name if c.isascii() and (c.isalnum() or c in "._-"))
        attached = f'attachment; filename="{name or "download"}"'.encode("ascii")
        kind = answer.file_type.encode("ascii")
        body = answer.file or b""
        await self._whole(
            answer.status, kind, body, [(b"content-disposition", attached), *extra_headers]
        )

    async def _whole(
        self, status: int, kind: bytes, body: bytes, extra_headers: Sequence[HeaderField]
    ) -> None:
        size = (b"content-length", str(len(body)).encode("ascii"))
        headers = [(b"content-type", kind), size, NO_STORE, *extra_headers]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": b"" if self._head else body})
