"""Credentials that do not change by themselves: API keys and headers."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from secrets import token_bytes

from gatepost.credentials.credential import CredentialUnavailable
from gatepost.secrets.cache import SecretCache
from gatepost.storage.errors import StoreUnavailable
from gatepost.tools.context.interfaces import SignedHeaders

ReadHeaders = Callable[[], Awaitable[Mapping[str, str]]]
"""Returns the headers by lower-case names; raises CredentialUnavailable."""

CACHED_S = 60.0
"""How long headers are used without reading their secrets again, if no secret has changed."""
SALT = token_bytes(16)
"""Versions are digests that reveal nothing about a secret outside of this process."""


class StaticCredential:
    """An API key or headers of one tenant, read again when a secret of the tenant changes."""

    def __init__(
        self,
        tenant: str,
        secrets: SecretCache,
        read: ReadHeaders,
    ) -> None:
        self._tenant, self._secrets, self._read = tenant, secrets, read
        self._cached_headers: SignedHeaders | None = None
        self._secrets_version = -1
        self._until = 0.0
        self._lock = asyncio.Lock()

    async def headers(self, principal: tuple[str, ...] | None = None) -> SignedHeaders:
        """Implement `OutboundCredential`."""
        signed = self._fresh()
        if signed is not None:
            return signed
        async with self._lock:
            signed = self._fresh()
            if signed is not None:
                return signed
            try:
                # The values are in the redaction set before any of them is sent.
                await self._secrets.load(self._tenant)
            except StoreUnavailable:
                raise CredentialUnavailable("The database does not answer.") from None
            headers = await self._read()
            self._cached_headers = signed = SignedHeaders(headers, version_of(headers))
            self._secrets_version = self._secrets.known_secrets(self._tenant).version
            self._until = time.monotonic() + CACHED_S
            return signed

    async def refused(self, headers: SignedHeaders) -> bool:
        """Implement `OutboundCredential`: an operator may have replaced the secret."""
        if self._cached_headers is not None and self._cached_headers.version == headers.version:
            self._cached_headers = None
        try:
            return (await self.headers()).version != headers.version
        except CredentialUnavailable:
            return False

    def _fresh(self) -> SignedHeaders | None:
        loaded = self._secrets.loaded(self._tenant)
        if (
            loaded is None
            or loaded.version != self._secrets_version
            or time.monotonic() >= self._until
        ):
            return None
        return self._cached_headers


def version_of(headers: Mapping[str, str]) -> str:
    """Return a version of these headers for this process."""
    digest = hashlib.sha256(SALT)
    for name, value in sorted(headers.items()):
        digest.update(f"{name}\0{value}\0".encode())
    return digest.hexdigest()[:16]


def bearer(key: str) -> dict[str, str]:
    """Return the header that sends an API key or a token (RFC 6750 section 2.1)."""
    return {"authorization": f"Bearer {key}"}
