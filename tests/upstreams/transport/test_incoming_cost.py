"""What long answers of an upstream cost the other requests of the process."""

import asyncio
import json

import pytest

from gatepost.upstreams.transport.incoming import (
    LONG_BYTES,
    InvalidMessage,
    read_messages,
    received_messages,
)
from tests.support.measuring import functions_called


def response(size: int) -> bytes:
    result = {"content": [{"type": "text", "text": '"' * (size // 2)}]}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode()


@pytest.mark.parametrize(("size", "in_thread"), [(1_000, False), (LONG_BYTES, True)])
def test_a_long_answer_is_read_in_a_thread(size: int, in_thread: bool) -> None:
    """One of 15 megabytes of quotation marks takes 0.2 seconds."""
    data = response(size)

    called = functions_called(lambda: asyncio.run(received_messages(data)))

    assert ("read_messages" not in called) is in_thread
    assert asyncio.run(received_messages(data)) == read_messages(data)


async def test_a_long_answer_that_is_no_message_is_refused() -> None:
    """As a short one is."""
    with pytest.raises(InvalidMessage, match="not JSON"):
        await received_messages(response(LONG_BYTES)[:-1])
