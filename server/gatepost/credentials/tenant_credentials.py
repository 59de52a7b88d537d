"""Find the credential of a tenant that signs in to a server."""

import hashlib
from collections.abc import Mapping

from gatepost.config.credentials import CredentialSettings
from gatepost.config.settings import Config
from gatepost.config.upstreams import EVERY_TENANT
from gatepost.credentials.credential import (
    CredentialDenied,
    NoCredential,
    OutboundCredential,
)
from gatepost.credentials.references import referred
from gatepost.credentials.static import ReadHeaders, StaticCredential, bearer
from gatepost.credentials.token_cache import TokenCache
from gatepost.credentials.token_client import ClientCredential, CredentialServices, TokenClient
from gatepost.secrets.hosts import checked_hosts, destination
from gatepost.tools.context.interfaces import SignedHeaders

NO_HEADERS: Mapping[str, str] = {}
SEPARATOR = "/"
MAX_KEPT = 4_096
"""The number of credentials that one process keeps ready."""


class DeniedCredential:
    """Stands for a credential that the tenant may not use, or that no table describes."""

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence

    async def headers(self, principal: tuple[str, ...] | None = None) -> SignedHeaders:
        """Raise CredentialDenied."""
        raise CredentialDenied(self._sentence)

    async def refused(self, headers: SignedHeaders) -> bool:
        """Return False, because there is nothing else to send."""
        return False


class CombinedCredential:
    """A credential, and the headers that are sent with it."""

    def __init__(self, first: OutboundCredential, second: OutboundCredential) -> None:
        self._first, self._second = first, second

    async def headers(self, principal: tuple[str, ...] | None = None) -> SignedHeaders:
        """Implement `OutboundCredential`."""
        first = await self._first.headers(principal)
        second = await self._second.headers(principal)
        return SignedHeaders(
            {**second.headers, **first.headers}, f"{first.version}{SEPARATOR}{second.version}"
        )

    async def refused(self, headers: SignedHeaders) -> bool:
        """Implement `OutboundCredential`."""
        first, _, second = headers.version.partition(SEPARATOR)
        retry = await self._first.refused(SignedHeaders(headers.headers, first))
        return await self._second.refused(SignedHeaders(headers.headers, second)) or retry


class CredentialRegistry:
    """
    The credentials of this process. There is one object per tenant, use and URL, so that tenants
    share none.

    `apply` takes up a configuration; changed credentials are created again.
    """

    def __init__(self, services: CredentialServices) -> None:
        self._services, self._secrets = services, services.secrets
        self._tables: Mapping[str, CredentialSettings] = {}
        self._credentials: dict[tuple[object, ...], OutboundCredential] = {}

    def apply(self, config: Config) -> None:
        """Use the tables of *config* from now on."""
        self._tables = config.credentials

    def named(
        self, tenant: str, name: str, url: str, *, headers: Mapping[str, str] = NO_HEADERS
    ) -> OutboundCredential:
        """
        Return the credential of a `[credentials.NAME]` table for requests to *url*.

        *headers* are references to further headers that requests carry.
        """
        table = self._tables.get(name)
        if table is None:
            return DeniedCredential(f"There is no credential {name!r} in the configuration.")
        if tenant not in table.tenants and EVERY_TENANT not in table.tenants:
            return DeniedCredential(f"The tenant {tenant} may not use the credential {name!r}.")
        if table.hosts and (problem := self._problem(name, table, url)):
            return DeniedCredential(problem)
        key = ("named", tenant, name, url, repr(table))
        credential = self._credentials.get(key) or self._keep(
            key, self._new_credential(tenant, name, url, table)
        )
        return (
            CombinedCredential(credential, self.referred(tenant, url, "", headers))
            if headers
            else credential
        )

    def for_tool(self, tenant: str, name: str, url: str) -> OutboundCredential:
        """
        Return the credential of a table for requests that a tool sends to *url*.

        A caller may have chosen the URL, so the table must name its host.
        """
        table = self._tables.get(name)
        if table is not None and not table.hosts:
            return DeniedCredential(
                f"The credential {name!r} names no hosts, so no tool may use it. Its operator adds "
                f"them: credentials.{name}.hosts"
            )
        return self.named(tenant, name, url)

    def referred(
        self, tenant: str, url: str, api_key: str, headers: Mapping[str, str]
    ) -> OutboundCredential:
        """Return the credential of references in a table of the configuration."""
        if not api_key and not headers:
            return NoCredential()
        key = ("referred", tenant, url, api_key, tuple(sorted(headers.items())))
        cached = self._credentials.get(key)
        return cached or self._keep(key, self._static(tenant, url, api_key, headers))

    def sealed(self, tenant: str, key: tuple[object, ...], read: ReadHeaders) -> OutboundCredential:
        """Return the credential of headers that *read* opens; *key* is their server's revision."""
        at = ("sealed", tenant, *key)
        return self._credentials.get(at) or self._keep(
            at, StaticCredential(tenant, self._secrets, read)
        )

    async def aclose(self) -> None:
        """End what runs."""
        for credential in self._credentials.values():
            if isinstance(credential, ClientCredential):
                await credential.aclose()
        self._credentials.clear()

    def _problem(self, name: str, table: CredentialSettings, url: str) -> str | None:
        """Return why the credential is not sent to *url*, or None."""
        try:
            target = destination(url, self._services.outbound.address_policy)
        except ValueError as problem:
            return f"The credential {name!r} is not sent to this URL: {problem}."
        if target in checked_hosts(table.hosts):
            return None
        bound = " and ".join(table.hosts)
        return f"The credential {name!r} is bound to {bound} and is not sent to {target}."

    def _new_credential(
        self, tenant: str, name: str, url: str, table: CredentialSettings
    ) -> OutboundCredential:
        if table.type == "static":
            return self._static(tenant, url, table.api_key, table.headers)
        client = TokenClient(table, self._services, tenant=tenant, url=url)
        # A changed table must not use the tokens of the previous one.
        use = hashlib.sha256(f"{name}\0{url}\0{table!r}".encode()).hexdigest()[:32]
        cache = TokenCache(
            tenant,
            f"credential_{use}",
            records=self._services.records,
            shared_store=self._services.shared_store,
            secrets=self._secrets,
        )
        return ClientCredential(client, cache)

    def _static(
        self, tenant: str, url: str, api_key: str, headers: Mapping[str, str]
    ) -> OutboundCredential:
        async def read() -> Mapping[str, str]:
            address_policy = self._services.outbound.address_policy
            values = {
                name.lower(): await referred(value, tenant, url, self._secrets, address_policy)
                for name, value in headers.items()
            }
            if api_key:
                values |= bearer(
                    await referred(api_key, tenant, url, self._secrets, address_policy)
                )
            return values

        return StaticCredential(tenant, self._secrets, read)

    def _keep(self, key: tuple[object, ...], credential: OutboundCredential) -> OutboundCredential:
        if len(self._credentials) >= MAX_KEPT:
            self._credentials.pop(next(iter(self._credentials)))
        self._credentials[key] = credential
        return credential
