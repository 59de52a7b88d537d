"""CORS at the edge: who may ask from a page, and what a page may read."""

import pytest

from tests.support.connections import HOST, PAGE, RecordedEdge, ask, recorded_edge

__all__ = ["recorded_edge"]  # a fixture

METADATA = "/.well-known/oauth-protected-resource/mcp"


PREFLIGHT = (
    HOST,
    (b"origin", PAGE),
    (b"access-control-request-method", b"POST"),
    (b"access-control-request-headers", b"authorization,mcp-param-region, x-evil,mcp-param-a b"),
)


@pytest.mark.requirement("W18", "T-19")
async def test_a_preflight_is_answered_without_a_token(recorded_edge: RecordedEdge) -> None:
    """The answer names every header that MCP clients send, and no others."""
    answer = await ask(recorded_edge.edge, method="OPTIONS", headers=PREFLIGHT)
    allowed = {
        name.strip().lower()
        for name in str(answer.headers.get("access-control-allow-headers")).split(",")
    }

    assert answer.status == 204
    assert answer.headers.get("access-control-allow-origin") == PAGE.decode()
    assert allowed >= {"authorization", "dpop", "content-type", "mcp-protocol-version"}
    assert allowed >= {"mcp-method", "mcp-name", "mcp-session-id", "last-event-id", "accept"}
    assert "mcp-param-region" in allowed
    assert not {name for name in allowed if "evil" in name or " " in name}
    assert answer.headers.get("access-control-allow-credentials") is None
    assert recorded_edge.inner.scopes == []


async def test_a_preflight_of_a_foreign_page_is_refused(recorded_edge: RecordedEdge) -> None:
    """The answer to a foreign origin has no CORS header."""
    headers = ((b"origin", b"https://evil.example"), *PREFLIGHT[2:], HOST)
    answer = await ask(recorded_edge.edge, method="OPTIONS", headers=headers)

    assert answer.status == 403
    assert answer.headers.get("access-control-allow-origin") is None


@pytest.mark.parametrize("length", [b"2", b"9999"])
async def test_an_allowed_page_can_read_answers_and_refusals(
    recorded_edge: RecordedEdge, length: bytes
) -> None:
    """A browser client needs to read the challenge."""
    headers = (HOST, (b"origin", PAGE), (b"content-length", length))
    answer = await ask(recorded_edge.edge, headers=headers)

    assert answer.status == (200 if length == b"2" else 413)
    assert answer.headers.get("access-control-allow-origin") == PAGE.decode()
    assert "WWW-Authenticate" in str(answer.headers.get("access-control-expose-headers"))


async def test_the_metadata_documents_allow_every_origin(recorded_edge: RecordedEdge) -> None:
    """They handle CORS themselves, including preflights."""
    for method in ("GET", "OPTIONS"):
        headers = ((b"origin", b"https://any.example"), *PREFLIGHT[2:], HOST)
        answer = await ask(recorded_edge.edge, METADATA, method=method, headers=headers)

        assert answer.status == 200
        assert answer.headers.get("access-control-allow-origin") is None
