"""`gatepost keyring` rotates the keys that sign sessions, while the sessions go on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.client import failure
from tests.support.commands import ServerProcess, run, server_process
from tests.support.issuers import Idp
from tests.support.server import SAMPLE_TOOLS, issuer_settings


def keyring(folder: Path, *arguments: str) -> str:
    """Return what `gatepost keyring ARGUMENTS` prints."""
    process = run("keyring", *arguments, cwd=folder)
    try:
        assert process.process.wait(20) == 0, process.output
        return process.stdout
    finally:
        process.kill()


@pytest.fixture
def server(idp: Idp, tmp_path: Path) -> Iterator[ServerProcess]:
    keyring(tmp_path, "new")
    ring = {"ring": "file:keyring.json"}
    tools = {"packs": ["demo"], "load": [SAMPLE_TOOLS]}
    with server_process(
        idp, tmp_path, [issuer_settings(idp, tenants={"acme": "acme"})], keys=ring, tools=tools
    ) as server:
        yield server


@pytest.mark.requirement("S-16", "S-20")
def test_a_session_outlives_rotations_until_its_key_is_removed(server: ServerProcess) -> None:
    """Old ids are taken while their key is in the ring, new ones have the new key's."""
    token = server.token()
    old = server.client.open(token)
    keyring(server.folder, "rotate", "--keep", "1")
    server.hang_up()
    new = server.client.open(token)

    assert old.partition(".")[0] != new.partition(".")[0]
    assert [server.client.within(token, session_id).status for session_id in (old, new)] == [
        200,
        200,
    ]

    keyring(server.folder, "rotate", "--keep", "1")
    server.hang_up()
    assert [server.client.within(token, session_id).status for session_id in (old, new)] == [
        404,
        200,
    ]


@pytest.mark.requirement("S-16")
def test_a_session_id_of_another_ring_is_unknown(server: ServerProcess) -> None:
    """No key of this ring signed it, so the answer is 404, in the same words as for garbage."""
    token = server.token()
    session = server.client.open(token)
    (server.folder / "keyring.json").unlink()
    keyring(server.folder, "new")
    server.hang_up()
    answers = [
        server.client.within(token, session_id)
        for session_id in (session, "garbage", session + "x")
    ]

    assert {answer.status for answer in answers} == {404}
    assert len({str(failure(answer)) for answer in answers}) == 1


def test_a_ring_that_cannot_be_read_keeps_the_old_one_in_force(server: ServerProcess) -> None:
    """An error in the file ends no session."""
    token = server.token()
    session = server.client.open(token)
    (server.folder / "keyring.json").write_text("{}")
    server.hang_up("reload_refused")

    assert server.client.within(token, session).status == 200
