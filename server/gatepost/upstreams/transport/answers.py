"""Read the answer to one HTTP request: messages of a JSON body, or of a stream of events."""

from collections.abc import AsyncGenerator

from gatepost.outbound.streaming import StreamedReply
from gatepost.upstreams.connection import UpstreamError, UpstreamResult
from gatepost.upstreams.transport.event_parser import EventParser
from gatepost.upstreams.transport.failures import invalid
from gatepost.upstreams.transport.incoming import (
    InvalidMessage,
    ReceivedMessage,
    UpstreamResponse,
    read_messages,
    received_messages,
)
from gatepost.upstreams.transport.reader import outcome_for

JSON, EVENTS = "application/json", "text/event-stream"
ERROR_BYTES = 65_536
SMALL_BYTES = 1_000_000
"""Maximum number of bytes of an answer to discovery or a handshake."""
STREAMS = 4
"""The size of a stream of messages, as a multiple of the largest size of one message."""


def media_type(reply: StreamedReply) -> str:
    """Return the type of a body without its parameters."""
    return reply.headers.get("content-type", "").partition(";")[0].strip().lower()


async def streamed_messages(
    reply: StreamedReply, parser: EventParser, max_bytes: int | None, *, batches: bool = False
) -> AsyncGenerator[ReceivedMessage, None]:
    """Yield the messages of an event stream as they arrive."""
    async for part in reply.parts(max_bytes):
        for event in parser.receive(part):
            if event.type == "message":
                for message in await received_messages(event.data, batches=batches):
                    yield message


async def answered_messages(
    server: str,
    reply: StreamedReply,
    parser: EventParser,
    max_bytes: int,
    *,
    batches: bool = False,
) -> AsyncGenerator[ReceivedMessage, None]:
    """Yield the messages of a successful answer, JSON or events; raises ConnectionFailure."""
    kind = media_type(reply)
    if kind == JSON:
        body = await reply.whole(max_bytes)
        for message in await received_messages(body, batches=batches):
            yield message
    elif kind == EVENTS:
        async for message in streamed_messages(reply, parser, max_bytes * STREAMS, batches=batches):
            yield message
    else:
        raise invalid(server, "sent an answer that is neither JSON nor an event stream")


async def first_outcome(
    server: str, reply: StreamedReply, identity: int
) -> UpstreamResult | UpstreamError | None:
    """Return the response to a small request; None if the answer has none."""
    if reply.status >= 400:
        refused = await refusal_in(reply)
        return None if refused is None else refused.outcome
    parser = EventParser(SMALL_BYTES)
    async for message in answered_messages(server, reply, parser, SMALL_BYTES):
        outcome = outcome_for([message], identity)
        if outcome is not None:
            return outcome
    return None


async def refusal_in(reply: StreamedReply) -> UpstreamResponse | None:
    """Return the JSON-RPC error in the body of an HTTP error, if there is one."""
    if media_type(reply) != JSON:
        return None
    try:
        (message,) = read_messages(await reply.whole(ERROR_BYTES))
    except InvalidMessage:
        return None
    is_error = isinstance(message, UpstreamResponse) and isinstance(message.outcome, UpstreamError)
    return message if is_error and isinstance(message, UpstreamResponse) else None
