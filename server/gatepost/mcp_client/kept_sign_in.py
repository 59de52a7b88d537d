"""Keep a sign-in between two commands, in a file that only its user can read."""

import asyncio
import fcntl
import hashlib
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from gatepost.permissions import GROUP_AND_OTHERS, is_foreign

FOLDER = "gatepost/sign-ins"
MAX_BYTES = 262_144
MARGIN_S = 30.0
"""A token that expires sooner is not used any more."""
LONGEST_S = 1e10
"""More seconds than any token is valid; without a bound, a number could exceed a float."""
OTHERS_WRITE = 0o022
OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


class KeptTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one sign-in: tokens, and where they are refreshed and revoked."""

    url: str
    """The MCP server."""
    resource: str
    issuer: str
    client_id: str
    token_endpoint: str
    revocation_endpoint: str = ""
    access_token: str
    refresh_token: str = ""
    scopes: tuple[str, ...] = ()
    expires_at: float | None = None
    """None if the issuer did not say."""

    @property
    def is_current(self) -> bool:
        """Return whether the access token has not expired yet."""
        return self.expires_at is None or time.time() < self.expires_at - MARGIN_S

    def covers(self, scopes: str) -> bool:
        """Return whether the sign-in has these scopes, which are separated by spaces."""
        return {*scopes.split()} <= {*self.scopes}


def state_home(environment: Mapping[str, str]) -> Path:
    """
    Return the folder of the kept sign-ins, by the XDG base directory specification.

    Raises OSError if the user has no home directory.
    """
    configured = Path(environment.get("XDG_STATE_HOME", ""))
    if configured.is_absolute():
        return configured / FOLDER
    try:
        return Path.home() / ".local/state" / FOLDER
    except RuntimeError:
        raise FileNotFoundError("this user has no home directory; set XDG_STATE_HOME") from None


class KeptSignIn:
    """
    The file of one MCP server and client, for the user of this process.

    Raises OSError if the folder cannot be written. Raises PermissionError for a file that others
    can read or that belongs to another user, and for a folder that others can change or own.
    """

    def __init__(self, folder: Path, url: str, client_id: str) -> None:
        # A URL may have any characters and any length.
        name = hashlib.sha256(msgspec.json.encode((url, client_id))).hexdigest()[:40]
        self._folder, self._url = folder, url
        self._path, self._lock = folder / f"{name}.json", folder / f"{name}.lock"

    def read(self) -> KeptTokens | None:
        """Return the kept tokens of the server; None if there are no usable ones."""
        try:
            self._check_folder()
            handle = os.open(self._path, os.O_RDONLY | OPEN_FLAGS)
        except FileNotFoundError:
            return None
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if is_foreign(status) or status.st_mode & GROUP_AND_OTHERS:
                raise PermissionError(f"{self._path} can be read by other users; delete it")
            try:
                tokens = msgspec.json.decode(file.read(MAX_BYTES), type=KeptTokens)
            except msgspec.DecodeError:
                return None  # of another version, or incomplete
        return tokens if tokens.url == self._url else None

    def write(self, tokens: KeptTokens) -> None:
        """Replace the kept tokens in one step; only within a block of `alone`."""
        self._make_folder()
        new = self._path.with_suffix(f".{os.getpid()}")
        new.unlink(missing_ok=True)
        try:
            handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | OPEN_FLAGS, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.encode(tokens))
            new.replace(self._path)
        finally:
            new.unlink(missing_ok=True)

    def forget(self) -> bool:
        """Delete the file; return whether there was one. Only within a block of `alone`."""
        # A killed command has left tokens in a file with another suffix. If the lock's file were
        # removed, two commands could refresh at a time.
        paths = [path for path in self._folder.glob(f"{self._path.stem}.*") if path != self._lock]
        for path in paths:
            path.unlink(missing_ok=True)
        return bool(paths)

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """
        Let no other command refresh, write or forget for the time of a block.

        Issuers end reused tokens, and a sign-out must not be undone by a refresh that ends later.
        """
        self._make_folder()
        handle = os.open(self._lock, os.O_RDWR | os.O_CREAT | OPEN_FLAGS, 0o600)
        try:
            await asyncio.to_thread(fcntl.flock, handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _make_folder(self) -> None:
        # The mode of `parents=True` would follow the umask.
        for folder in reversed((self._folder, *self._folder.parents)):
            folder.mkdir(mode=0o700, exist_ok=True)
        self._check_folder()

    def _check_folder(self) -> None:
        status = self._folder.stat()
        if is_foreign(status):
            raise PermissionError(
                f"{self._folder} belongs to another user (uid {status.st_uid}); "
                "set XDG_STATE_HOME to a folder of your own"
            )
        if status.st_mode & OTHERS_WRITE:
            raise PermissionError(
                f"{self._folder} can be changed by other users; run chmod 700 on it"
            )


def tokens_of(document: Mapping[str, Any], requested_scope: str, **members: str) -> KeptTokens:
    """
    Return the tokens of an answer of a token endpoint (RFC 6749 section 5.1).

    *requested_scope* are the scopes of the request, which an answer without `scope` has granted.
    """
    granted, refresh = document.get("scope"), document.get("refresh_token")
    seconds = document.get("expires_in")
    expires_at = None
    if isinstance(seconds, int | float) and not isinstance(seconds, bool):
        expires_at = time.time() + seconds if 0 <= seconds < LONGEST_S else None
    return KeptTokens(
        access_token=str(document["access_token"]),
        refresh_token=refresh if isinstance(refresh, str) else "",
        scopes=tuple((granted if isinstance(granted, str) else requested_scope).split()),
        expires_at=expires_at,
        **members,
    )
