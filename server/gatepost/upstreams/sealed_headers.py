"""Keep the API key and the header values of servers encrypted, and in the redaction set."""

import hashlib
from collections.abc import Iterable, Mapping

import msgspec

from gatepost.secrets.cache import SecretCache
from gatepost.secrets.names import MIN_CHARACTERS
from gatepost.upstreams.upstream_server import UpstreamServer

API_KEY = "api_key"


class ServerSecrets(msgspec.Struct, frozen=True, kw_only=True):
    """
    The secret part of a registration: the values that a change sets, or that a connection sends.
    """

    api_key: str | msgspec.UnsetType | None = msgspec.UNSET
    """UNSET leaves the stored one as it is; None deletes it."""
    headers: Mapping[str, str] | msgspec.UnsetType = msgspec.UNSET
    """Replaces all headers; UNSET leaves the stored ones as they are."""

    def __repr__(self) -> str:
        return "ServerSecrets(…)"


NO_SECRETS = ServerSecrets()


class SealedHeaders:
    """
    The encrypted values of servers, each as one inner secret of the tenant.

    The key ring encrypts and reseals them, and they are redacted from every answer and log. All
    methods raise StoreUnavailable; those that read raise SecretUnreadable.
    """

    def __init__(self, secrets: SecretCache) -> None:
        self._secrets = secrets

    async def put(self, tenant: str, server_id: str, secrets: ServerSecrets) -> None:
        """Store the given values; raises SecretRefused, also if the tenant has too many."""
        for name, value in _new_values(secrets):
            # Answers may contain a value as short as "true" by chance.
            await self._secrets.put(
                tenant,
                sealed_name(server_id, name),
                value,
                redacted=len(value) >= MIN_CHARACTERS,
            )

    async def secrets_for(self, server: UpstreamServer) -> ServerSecrets:
        """Return what a connection to the server sends."""
        names = [API_KEY] if server.api_key_set else []
        values: dict[str, str] = {}
        for name in (*names, *(header_key(header) for header in server.header_names)):
            secret = await self._secrets.value(server.tenant, sealed_name(server.id, name))
            if secret is not None:
                values[name] = secret.value
        headers = {
            header: values[header_key(header)]
            for header in server.header_names
            if header_key(header) in values
        }
        return ServerSecrets(api_key=values.get(API_KEY), headers=headers)

    async def delete(self, tenant: str, server_id: str, names: Iterable[str]) -> None:
        """Delete values by `API_KEY` or `header_key`."""
        for name in names:
            await self._secrets.delete(tenant, sealed_name(server_id, name))


def sealed_name(server_id: str, name: str) -> str:
    """Return the inner name of a secret; `SealedStore` of a pack cannot be named `mcp_`."""
    return f"mcp_{server_id.replace('-', '')}_{name}"


def header_key(header: str) -> str:
    """Return the part of an inner name for a header, whose name may have other characters."""
    return f"header_{hashlib.sha256(header.lower().encode()).hexdigest()[:32]}"


def names_of(server: UpstreamServer) -> frozenset[str]:
    """Return the parts of the inner names of all that a server has encrypted."""
    headers = frozenset(header_key(header) for header in server.header_names)
    return headers | {API_KEY} if server.api_key_set else headers


def _new_values(secrets: ServerSecrets) -> Iterable[tuple[str, str]]:
    if isinstance(secrets.api_key, str):
        yield API_KEY, secrets.api_key
    if isinstance(secrets.headers, Mapping):
        for header, value in secrets.headers.items():
            yield header_key(header), value
