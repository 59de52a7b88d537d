"""Get a client's access tokens from a kept sign-in, a refresh, or the browser."""

import asyncio
from collections.abc import Callable

from gatepost.doctor.challenge import read_challenge
from gatepost.doctor.http import HttpAnswer, ServerUnreachable
from gatepost.doctor.report import Findings
from gatepost.mcp_client.kept_sign_in import KeptSignIn, KeptTokens
from gatepost.mcp_client.sign_in import BrowserSignIn, SignInFailed


class SignedInTokens:
    """
    Gets access tokens for one server, and asks a person only if it must.

    *kept_sign_in* is the file of the sign-in, None if it is not kept. *scopes* are those that it
    must have, separated by spaces. *tell* shows a sentence if it cannot be kept.
    """

    def __init__(
        self,
        browser: BrowserSignIn,
        kept_sign_in: KeptSignIn | None,
        *,
        scopes: str = "",
        tell: Callable[[str], object],
    ) -> None:
        self._browser, self._kept_sign_in, self._tell = browser, kept_sign_in, tell
        self._scopes = scopes
        self._used = ""
        """The access token that was used last."""
        self._refreshed = False

    async def first(self) -> str:
        """Return the access token to begin with; empty if there is none."""
        tokens = self._read()
        if tokens is not None and not tokens.is_current:
            tokens = await self._refresh(tokens)
        self._used = tokens.access_token if tokens and tokens.covers(self._scopes) else ""
        return self._used

    async def __call__(self, refused: HttpAnswer) -> str:
        """Return another token after the answer 401 or 403; raises SignInFailed."""
        stored = self._read()
        if stored and self._used and refused.status == 401 and not self._refreshed:
            # Another command may have refreshed meanwhile.
            is_other = stored.access_token != self._used
            current = stored if is_other else await self._refresh(stored)
            if current is not None:
                self._used = current.access_token
                return self._used
        # A sign-in for one more scope must not lose the scopes of the previous one.
        before = " ".join(stored.scopes) if stored else ""
        tokens = await self._browser(read_challenge(refused, Findings()), before)
        await self._store(tokens)
        self._used = tokens.access_token
        return self._used

    async def _refresh(self, old: KeptTokens) -> KeptTokens | None:
        """Return new tokens; None if only a person can sign in."""
        self._refreshed = True
        if self._kept_sign_in is None or not old.refresh_token:
            return None
        try:
            async with self._kept_sign_in.locked():
                stored = self._read()
                if stored is None or stored.access_token != old.access_token:
                    return stored
                tokens = await self._browser.refreshed(stored)
                try:
                    self._kept_sign_in.write(tokens)
                except OSError as error:
                    self._not_kept(error)
                return tokens
        except (SignInFailed, ServerUnreachable, OSError):
            return None

    def _read(self) -> KeptTokens | None:
        try:
            return None if self._kept_sign_in is None else self._kept_sign_in.read()
        except OSError as error:
            self._tell(f"The kept sign-in is not used: {error}")
            self._kept_sign_in = None
            return None

    async def _store(self, tokens: KeptTokens) -> None:
        """Write tokens when no other command writes, or signs out."""
        if self._kept_sign_in is None:
            return
        try:
            async with self._kept_sign_in.locked():
                self._kept_sign_in.write(tokens)
        except OSError as error:
            self._not_kept(error)

    def _not_kept(self, error: OSError) -> None:
        self._tell(f"The sign-in is not kept: {error}")
        self._kept_sign_in = None


async def no_sign_in(refused: HttpAnswer) -> str:
    """Refuse to sign in, where a token was given."""
    await asyncio.sleep(0)
    challenge = read_challenge(refused, Findings())
    scopes = challenge.get("scope", "")
    if challenge.get("error") == "insufficient_scope" and scopes:
        raise SignInFailed(
            f"The access token lacks permissions (HTTP {refused.status}). Get a token with the "
            f"scopes {scopes}, or omit --token and GATEPOST_TOKEN to sign in."
        )
    description = challenge.get("error_description", "").rstrip(".")
    raise SignInFailed(
        f"The server refused the access token (HTTP {refused.status})"
        f"{': ' if description else ''}{description}. "
        "Omit --token and GATEPOST_TOKEN to sign in."
    )
