"""Adapt h11 to this server: deadlines, and no folded headers."""

import asyncio
import re
from collections.abc import Hashable
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from gatepost.http.deadlines import HeadWatch, ListenConfig
from gatepost.http.flow_control import ResponseFlow, owner_of

# The head ends at the first of these: a continued line, or the empty line behind the head.
HEAD_OR_FOLD = re.compile(rb"\n(?:[ \t]|\r?\n)")


class StrictH11Protocol(H11Protocol):
    """h11, with the same deadlines for heads and for clients that do not read."""

    flow: ResponseFlow

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._watch = HeadWatch(self, cast("ListenConfig", self.config), self.loop)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = ResponseFlow(transport, cast("ListenConfig", self.config).unread, self)
        self._watch.arm()

    def owner(self) -> Hashable:
        """Return the caller whose answer is being written."""
        return owner_of(self.scope)

    def idle_since(self) -> float | None:
        """Return None, because connections of this protocol are not closed when idle."""
        return None

    def finish(self) -> None:
        """Do nothing: `shutdown` makes the current response the last one."""

    def is_busy(self) -> bool:
        """Return whether a request waits for its response, or a response is unread."""
        cycle = cast("Any", self.cycle)
        return cycle is not None and not cycle.response_complete

    def drained(self) -> None:
        """Do nothing, because h11 takes one request at a time."""

    def hang_up(self) -> None:
        """Close the connection behind what has been written."""
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.disarm()
        self.flow.forget()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            # The rest of a refused request's body may have come in the same packet.
            self._watch.received = 0
            self._watch.count(len(self.conn.trailing_data[0]))
        elif not self._body_is_unwanted():
            self._watch.disarm()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._body_is_unwanted():
            self._watch.arm()

    def handle_events(self) -> None:
        if self.conn.their_state is h11.IDLE and is_folded(self.conn.trailing_data[0]):
            # h11 joins the lines, but a proxy in front may have read another value. RFC 9112
            # section 5.2 lets a server refuse, as httptools does.
            self.send_400_response("Invalid HTTP request received.")
            return
        super().handle_events()

    def _body_is_unwanted(self) -> bool:
        # uvicorn declares it as always set, but before the first request it is None.
        cycle = cast("Any", self.cycle)
        return (
            cycle is not None and cycle.response_complete and self.conn.their_state is h11.SEND_BODY
        )

    def _unsupported_upgrade_warning(self) -> None:
        """Do nothing: an Upgrade header is a client's choice."""


def is_folded(data: bytes) -> bool:
    """Return whether the request head in *data* has a folded line."""
    end = HEAD_OR_FOLD.search(data)
    return end is not None and end[0][-1:] in b" \t"
