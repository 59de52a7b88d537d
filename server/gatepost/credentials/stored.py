"""The API keys and headers of servers that the API registered, sealed with the tenant's secrets."""

import hashlib
from collections.abc import Mapping, Sequence

from gatepost.credentials.credential import CredentialUnavailable
from gatepost.credentials.static import bearer
from gatepost.secrets.cache import SecretCache
from gatepost.secrets.names import LEAST_CHARACTERS
from gatepost.secrets.store import SecretUnreadable
from gatepost.storage.errors import StoreUnavailable


class ServerSecrets:
    """
    The secrets of registered servers, one sealed secret each (AES-256-GCM), in the redaction set.

    A header value of fewer than eight characters is sealed too but not redacted: it would occur in
    any text by chance.
    """

    def __init__(self, secrets: SecretCache) -> None:
        self._secrets = secrets

    async def put_key(self, tenant: str, server_id: str, key: str) -> None:
        """Store the API key of a server; raises SecretRefused and StoreUnavailable."""
        await self._secrets.put(tenant, key_name(server_id), key)

    async def put_headers(self, tenant: str, server_id: str, headers: Mapping[str, str]) -> None:
        """Store header values by lower-case names; raises SecretRefused and StoreUnavailable."""
        for name, value in headers.items():
            await self._secrets.put(
                tenant,
                header_name(server_id, name),
                value,
                username=len(value) < LEAST_CHARACTERS,
            )

    async def delete_key(self, tenant: str, server_id: str) -> None:
        """Delete the API key of a server, if it has one."""
        await self._secrets.delete(tenant, key_name(server_id))

    async def delete_headers(self, tenant: str, server_id: str, names: Sequence[str]) -> None:
        """Delete header values."""
        for name in names:
            await self._secrets.delete(tenant, header_name(server_id, name))

    async def headers(
        self, tenant: str, server_id: str, *, key: bool, names: Sequence[str]
    ) -> dict[str, str]:
        """Return the headers that sign requests in; raises CredentialUnavailable."""
        found = {}
        for name in names:
            found[name] = await self._value(tenant, header_name(server_id, name))
        return found | (bearer(await self._value(tenant, key_name(server_id))) if key else {})

    async def _value(self, tenant: str, name: str) -> str:
        try:
            held = await self._secrets.value(tenant, name)
        except SecretUnreadable:
            raise CredentialUnavailable(
                "The stored API key or header cannot be decrypted any more. Set it again."
            ) from None
        except StoreUnavailable:
            raise CredentialUnavailable("The database does not answer.") from None
        if held is None:
            raise CredentialUnavailable("The API key or a header of the server is gone.")
        return held.value


def key_name(server_id: str) -> str:
    """Return the name of the secret that is the API key of a server."""
    return f"upstream_{server_id.replace('-', '')}_key"


def header_name(server_id: str, header: str) -> str:
    """Return the name of the secret that is a header of a server; a digest, as names may be odd."""
    digest = hashlib.sha256(header.lower().encode()).hexdigest()[:24]
    return f"upstream_{server_id.replace('-', '')}_header_{digest}"
