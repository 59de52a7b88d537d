"""What was found by servers and callers who write what is hardly a URL."""

from typing import Any

import pytest

from gatepost.execution.failure import ToolFailure
from gatepost.tools.context.interfaces import OutboundReply
from gatepost_packs.calendar.caldav import CalDav
from gatepost_packs.gitlab.address import address_of

WAYS_UP = ["/x/%25252e%25252e/y", "/x/..;/y", "/x/%2e%2e;a=b/y", "/x/%252e%252e%253b/y", "/x/.;/y"]


@pytest.mark.parametrize("path", WAYS_UP)
def test_paths_with_encoded_dot_segments_are_refused(path: str) -> None:
    """Each server in a row may decode a path once more."""
    with pytest.raises(ToolFailure, match="as a segment"):
        address_of("https://gitlab.test/api/v4", path)


class RepeatingClient:
    """Answers everything in the same way."""

    def __init__(self, reply: OutboundReply) -> None:
        self._reply = reply

    async def send(self, method: str, url: str, **options: Any) -> OutboundReply:
        return self._reply

    async def addresses(self, scheme: str, host: str, port: int) -> list[str]:
        return []


def _home(href: str) -> OutboundReply:
    body = (
        '<d:multistatus xmlns:d="DAV:" xmlns:c="urn:ietf:params:xml:ns:caldav"><d:response>'
        f"<d:href>{href}</d:href><d:propstat><d:prop><c:calendar-home-set><d:href>{href}</d:href>"
        "</c:calendar-home-set></d:prop></d:propstat></d:response></d:multistatus>"
    )
    return OutboundReply(
        status=207, headers={}, body=body.encode(), truncated=False, url="https://c.test/"
    )


def _moved(location: str) -> OutboundReply:
    headers = {"location": location}
    return OutboundReply(
        status=302, headers=headers, body=b"", truncated=False, url="https://c.test/"
    )


NO_URLS = ["http://[::1", "https://c.test:99999/", "//[x/", "https://c.test:abc/", "https://[/"]


@pytest.mark.parametrize("answer", [_home, _moved])
@pytest.mark.parametrize("text", NO_URLS)
async def test_a_caldav_server_that_refers_to_an_invalid_url_is_a_tool_failure(
    answer: Any, text: str
) -> None:
    """The tool fails with a message about the server, and not with an internal error."""
    server = CalDav(RepeatingClient(answer(text)), "https://c.test/", user="u", password="p")
    with pytest.raises(ToolFailure, match=r"refers to another|no calendar"):
        await server.collections()
