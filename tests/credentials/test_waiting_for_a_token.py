"""A process that needs the token that another one is getting at this moment."""

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from gatepost.credentials import token_client as module
from gatepost.credentials.credential import CredentialUnavailable
from gatepost.credentials.token_cache import IssuedToken, TokenCache
from gatepost.credentials.token_client import ClientCredential, TokenClient
from gatepost.secrets.cache import SecretCache
from gatepost.secrets.keyring import KeyRing
from gatepost.secrets.store import SecretStore
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.shared_store import MemorySharedStore

LONG_WAIT_S, WITHIN_S, MAX_TURNS = 60.0, 10.0, 100
REFUSAL = CredentialUnavailable("refused")


class TokenIssuer:
    """An authorization server that answers these, each once it may."""

    def __init__(self, *answers: IssuedToken | CredentialUnavailable) -> None:
        self._answers = [*answers]
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def issue(self) -> IssuedToken:
        """Issue the next answer, like `TokenClient.issue`."""
        answer = self._answers.pop(0)
        self.asked.set()
        await self.may_answer.wait()
        if isinstance(answer, CredentialUnavailable):
            raise answer
        return answer


@pytest.fixture
def two_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[TokenIssuer], Sequence[ClientCredential]]:
    """Return the credential of two processes, which look again only when they are woken."""
    monkeypatch.setattr(module, "POLL_S", LONG_WAIT_S)
    records, shared_store, keyring = MemoryRecords(), MemorySharedStore(), KeyRing.ephemeral()

    def credential(issuer: TokenIssuer) -> ClientCredential:
        cache = TokenCache(
            "acme",
            "credential_crm",
            records=records,
            shared_store=shared_store,
            secrets=SecretCache(SecretStore(records, keyring)),
        )
        return ClientCredential(cast("TokenClient", issuer), cache)

    return lambda issuer: [credential(issuer) for _ in range(2)]


async def answers(issuer: TokenIssuer, credentials: Sequence[ClientCredential]) -> list[object]:
    """Return the answers to two requests, of which the second waits for the first."""
    async with asyncio.timeout(WITHIN_S):
        first = asyncio.create_task(credentials[0].headers())
        await issuer.asked.wait()
        second = asyncio.create_task(credentials[1].headers())
        for _ in range(MAX_TURNS):  # until it waits
            await asyncio.sleep(0)
        issuer.may_answer.set()
        return await asyncio.gather(first, second, return_exceptions=True)


async def test_a_waiting_process_uses_the_token_of_the_first_process(
    two_credentials: Callable[[TokenIssuer], Sequence[ClientCredential]],
) -> None:
    """It does not request a token of its own."""
    issuer = TokenIssuer(IssuedToken("token-of-the-first-process", 300.0))
    results = await answers(issuer, two_credentials(issuer))

    assert results[0] == results[1]
    assert not isinstance(results[0], BaseException)


async def test_a_waiting_process_requests_a_token_if_the_first_one_fails(
    two_credentials: Callable[[TokenIssuer], Sequence[ClientCredential]],
) -> None:
    """It does not wait for the end of the lease."""
    issuer = TokenIssuer(REFUSAL, IssuedToken("token-of-the-second-process", 300.0))
    first, second = await answers(issuer, two_credentials(issuer))

    assert first is REFUSAL
    assert "token-of-the-second-process" in str(getattr(second, "headers", second))
