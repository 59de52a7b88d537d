"""Addresses, ages, token headers and paths that are malformed or look like others."""

from pathlib import Path

import pytest

from gatepost import ToolFailure
from gatepost.workspace import Workspaces
from tests.authz.conftest import TARGET, OpaqueTokenGate
from tests.keys.conftest import CodeFlow
from tests.support.issuers import Idp, b64


@pytest.mark.parametrize("address", ["http://[", "http://[::1", "http://127.0.0.1:99999/"])
async def test_an_address_that_is_no_url_is_answered_on_a_page(address: str) -> None:
    """A link with one to the development issuer ended in a traceback."""
    walk = CodeFlow()
    await walk.register()

    answer = await walk.authorize(redirect_uri=address)

    assert answer.status_code == 400
    assert "not registered" in answer.text


@pytest.mark.parametrize("seconds", ["9" * 5000, "0" * 5000])
async def test_an_age_of_thousands_of_digits_limits_nothing(seconds: str) -> None:
    """Python refuses to read such a number, and a signed-in user got a traceback."""
    walk = CodeFlow()
    await walk.register()
    await walk.sign_in()

    answer = await walk.authorize(max_age=seconds)

    assert answer.status_code == 200
    assert "/consent" in answer.text


@pytest.mark.parametrize("head", ['{ "alg":"dir"}', '{\n"alg":"dir"}', '{\r\n "alg":"dir"}'])
async def test_an_encrypted_token_is_shown_to_no_issuer_however_its_header_is_laid_out(
    head: str,
) -> None:
    """It is another issuer's, and a reader of the page could use it."""
    with Idp() as idp:
        opaque_gate = OpaqueTokenGate(idp)
        token = f"{b64(head.encode())}..iv.text.tag"

        assert await opaque_gate.verifier.verify(token, TARGET) is None
        assert opaque_gate.endpoint.asked == []

        await opaque_gate.verifier.aclose()
        await opaque_gate.introspectors.aclose()
        await opaque_gate.fetcher.aclose()


@pytest.mark.parametrize("mark", ["\x85", "\x9b", "\u2028", "\u2029", "\u202e", "\u2066"])
async def test_a_path_cannot_look_like_another_to_its_approver(tmp_path: Path, mark: str) -> None:
    """A terminal obeys the controls above 0x80, and `exe.txt` may be `txt.exe` reordered."""
    workspace = Workspaces(tmp_path).of("acme")

    with pytest.raises(ToolFailure, match="control characters"):
        await workspace.write(f"report{mark}fdp.csv", b"")
