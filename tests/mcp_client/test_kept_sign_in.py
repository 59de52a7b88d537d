"""A sign-in that is kept: who may write it, who may read it, and when it ends."""

import asyncio
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from gatepost.cli.main import main
from gatepost.mcp_client.access_tokens import SignedInTokens
from gatepost.mcp_client.kept_sign_in import KeptSignIn, KeptTokens, state_home
from gatepost.mcp_client.sign_in import BrowserSignIn
from tests.support.measuring import each

URL = "http://127.0.0.1:9/mcp"


def tokens() -> KeptTokens:
    """Return tokens that have expired."""
    return KeptTokens(
        url=URL,
        resource=URL,
        issuer="http://127.0.0.1:9",
        client_id="c",
        token_endpoint="http://127.0.0.1:9/token",
        access_token="old",
        refresh_token="refresh",
        expires_at=1.0,
    )


def sign_in_kept_in(folder: Path) -> KeptSignIn:
    return KeptSignIn(state_home({"XDG_STATE_HOME": str(folder)}), URL, "")


def sign_out(folder: Path) -> Result:
    environment = {"XDG_STATE_HOME": str(folder)}
    return CliRunner().invoke(main, ["sign-out", "--url", URL], env=environment)


async def first_token(sign_in: KeptSignIn, answer: Callable[[httpx2.Request], Any]) -> str:
    """Return the first access token of a command; the issuer gives *answer*."""
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
        browser = BrowserSignIn(client, URL, show=pytest.fail)
        return await SignedInTokens(browser, sign_in, tell=pytest.fail).first()


def token_answer(expires_in: str) -> bytes:
    return b'{"access_token":"new","token_type":"Bearer","expires_in":%b}' % expires_in.encode()


async def test_a_sign_out_waits_for_a_refresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the refresh would keep its tokens after it. The lock's file stays."""
    sign_in, loop = sign_in_kept_in(tmp_path), asyncio.get_running_loop()
    sign_in.write(tokens())
    locking, lock = asyncio.Queue[None](), fcntl.flock
    requested, answered = asyncio.Event(), asyncio.Event()

    def flock(handle: int, operation: int) -> None:
        loop.call_soon_threadsafe(locking.put_nowait, None)
        lock(handle, operation)

    async def answer(request: httpx2.Request) -> httpx2.Response:
        requested.set()
        await answered.wait()
        return httpx2.Response(200, content=token_answer("3600"))

    monkeypatch.setattr(fcntl, "flock", flock)
    refresh = asyncio.create_task(first_token(sign_in, answer))
    async with asyncio.timeout(60):
        await requested.wait()
        await locking.get()
        out = asyncio.create_task(asyncio.to_thread(sign_out, tmp_path))
        waits = asyncio.create_task(locking.get())
        await asyncio.wait({out, waits}, return_when=asyncio.FIRST_COMPLETED)
        assert waits.done()
        answered.set()
        assert await refresh == "new"
        assert "Signed out" in (await out).output

    assert sign_in.read() is None
    assert [path.suffix for path in (tmp_path / "gatepost/sign-ins").iterdir()] == [".lock"]


def test_no_temporary_file_with_tokens_is_left(tmp_path: Path) -> None:
    """A write that fails removes them, and a sign-out those of a command that was killed."""
    sign_in, folder = sign_in_kept_in(tmp_path), tmp_path / "gatepost/sign-ins"
    sign_in.write(tokens())
    (file,) = folder.iterdir()
    file.rename(file.with_suffix(".12345"))
    file.mkdir()
    with pytest.raises(IsADirectoryError):
        sign_in.write(tokens())
    file.rmdir()
    other = KeptSignIn(folder, f"{URL}/other", "")
    other.write(tokens())
    (remaining,) = {*folder.iterdir()} - {file.with_suffix(".12345")}
    out = sign_out(tmp_path)

    assert "Signed out" in out.output
    assert {*folder.iterdir()} == {remaining, file.with_suffix(".lock")}


@each(
    ("expires_in", "seconds"),
    [
        ("3600", 3600),
        ("0", 0),
        ("1" + "0" * 400, None),
        ("1e300", None),
        ("1e10", None),
        ("-1", None),
        ("true", None),
    ],
)
async def test_a_lifetime_out_of_range_is_ignored(
    tmp_path: Path, expires_in: str, seconds: int | None
) -> None:
    """The new token is used, whatever number the issuer sends."""
    sign_in, began = sign_in_kept_in(tmp_path), time.time()
    sign_in.write(tokens())

    async def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=token_answer(expires_in))

    assert await first_token(sign_in, answer) == "new"
    kept_tokens = sign_in.read()
    assert kept_tokens is not None
    if seconds is None:
        assert kept_tokens.expires_at is None
    else:
        assert kept_tokens.expires_at is not None
        assert began + seconds <= kept_tokens.expires_at <= time.time() + seconds


def test_folders_are_closed_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The umask does not matter; a folder that another user owns or can change is not used."""
    sign_in, folder = sign_in_kept_in(tmp_path / "state"), tmp_path / "state/gatepost/sign-ins"
    before = os.umask(0)
    try:
        sign_in.write(tokens())
    finally:
        os.umask(before)
    for path in (folder, *folder.parents[:2]):
        assert path.stat().st_mode & 0o777 == 0o700

    for mode in (0o720, 0o702):
        folder.chmod(mode)
        with pytest.raises(PermissionError, match="run chmod 700 on it"):
            sign_in.read()
        with pytest.raises(PermissionError, match="run chmod 700 on it"):
            sign_in.write(tokens())
    shared = sign_out(tmp_path / "state")
    folder.chmod(0o700)
    kept_tokens = sign_in.read()
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    theirs = sign_out(tmp_path / "state")

    assert kept_tokens == tokens()
    assert (shared.exit_code, theirs.exit_code) == (1, 1)
    assert f"{folder} can be changed by other users" in shared.output
    assert f"{folder} belongs to another user" in theirs.output


def test_a_sign_in_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    """Neither is one of another server, of another version, or behind a link."""
    sign_in = sign_in_kept_in(tmp_path)
    written = replace(tokens(), access_token="secret")
    sign_in.write(written)
    assert sign_in.read() == written
    (file,) = (tmp_path / "gatepost/sign-ins").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o640)
    with pytest.raises(PermissionError, match="can be read by other users"):
        sign_in.read()
    refused = sign_out(tmp_path)
    file.chmod(0o600)
    for content in (b"{}", file.read_bytes().replace(b":9/mcp", b":9/other")):
        file.write_bytes(content)
        assert sign_in.read() is None
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        sign_in.read()

    assert refused.exit_code == 1
    assert "can be read by other users; delete it" in refused.output
    assert "secret" not in refused.output
