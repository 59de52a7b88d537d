"""A constant refusal keeps nothing of the requests that it answers."""

import pytest

from gatepost.mcp.jsonrpc import JsonRpcError
from gatepost.mcp.responses import Replies
from gatepost_authz.challenge import Challenge
from gatepost_authz.protected_resource import Resource

CONSTANT_ERROR = JsonRpcError(-32600, "As many others")


def test_a_constant_refusal_keeps_no_reference_to_its_requests() -> None:
    """A traceback holds the frames of a request, and each raise would add another."""
    replies = Replies(Challenge(), Resource("https://mcp.example.com/mcp"), modern=True)
    for _ in range(3):
        with pytest.raises(JsonRpcError) as caught:
            raise CONSTANT_ERROR
        answer = replies.refused(b"1", caught.value)

        assert answer.status == 400
        assert CONSTANT_ERROR.__traceback__ is None
        assert CONSTANT_ERROR.__context__ is None
