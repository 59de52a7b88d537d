"""How long other servers ask to be left alone reaches the model, however they write it."""

import pytest

from gatepost.execution.failure import ToolFailure
from gatepost.tools.context.interfaces import OutboundReply
from gatepost_packs.github.errors import refusal
from gatepost_packs.openapi.errors import refusal_of
from gatepost_packs.retry_after import retry_after
from gatepost_packs.web.tools import _check_status

RETRY_AFTER_VALUES = {
    "": None,
    "7": 7.0,
    "9999999999": 86_400.0,
    "soon": None,
    "-1": None,
    "Wed, 21 Oct 2015 07:28:00 GMT": 0.0,
    "Wed, 21 Oct 2099 07:28:00 GMT": 86_400.0,
}


@pytest.mark.requirement("X7", "P8", "P9")
@pytest.mark.parametrize("text", RETRY_AFTER_VALUES)
def test_retry_after_is_parsed_and_bounded(text: str) -> None:
    """Seconds or a date; at most a day."""
    assert retry_after({"retry-after": text}) == RETRY_AFTER_VALUES[text]


@pytest.mark.requirement("X7", "P8", "P9")
def test_every_pack_converts_a_date_to_seconds() -> None:
    """Each pack bounds the wait by its own maximum."""
    reply = OutboundReply(
        429, {"retry-after": "Wed, 21 Oct 2099 07:28:00 GMT"}, b"{}", False, "https://a.example/"
    )
    with pytest.raises(ToolFailure) as page:
        _check_status(reply)

    assert page.value.failure.retry_after == 3_600
    assert refusal(reply, "a/b", wrote=False).failure.retry_after == 3_600
    assert refusal_of(reply, "GET /").failure.retry_after == 86_400
