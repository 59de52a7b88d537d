"""An upstream with resource metadata, and what credentials use of a process."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from gatepost.credentials.token_client import CredentialServices
from gatepost.outbound.http_client import OutboundClient
from gatepost.secrets.cache import SecretCache
from gatepost.secrets.keyring import KeyRing
from gatepost.secrets.store import SecretStore
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.shared_store import MemorySharedStore
from gatepost_authz.config import Network
from gatepost_authz.fetch import Fetcher
from tests.support.issuers import AsgiServer
from tests.support.processes import free_port

TENANT = "acme"


class MetadataServer:
    """Serves JSON documents by path, and remembers what was asked."""

    def __init__(self) -> None:
        self.documents: dict[str, Any] = {}
        self.asked: list[str] = []
        self.port = free_port()
        self._server = AsgiServer(self, port=self.port)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.append(scope["path"])
        found = self.documents.get(scope["path"])
        status, body = (404, b"{}") if found is None else (200, json.dumps(found).encode())
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def __enter__(self) -> "MetadataServer":
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()


@pytest.fixture(scope="module")
def upstream() -> Iterator[MetadataServer]:
    with MetadataServer() as server:
        yield server


class CredentialsReplica:
    """What the credentials of one process use; several share the records and the keys."""

    def __init__(
        self,
        records: MemoryRecords,
        shared_store: MemorySharedStore,
        keyring: KeyRing,
        *hosts: str,
    ) -> None:
        network = Network(allow_hosts=tuple(urlsplit(one).netloc for one in hosts))
        self.fetcher = Fetcher(development=True, network=network)
        self.services = CredentialServices(
            records=records,
            shared_store=shared_store,
            secrets=SecretCache(SecretStore(records, keyring)),
            keyring=keyring,
            outbound=OutboundClient(network, tls=self.fetcher.tls),
        )

    async def aclose(self) -> None:
        await self.services.outbound.aclose()
        await self.fetcher.aclose()


class CredentialsReplicas:
    """Makes replicas over the same records and keys."""

    def __init__(self) -> None:
        self.records, self.keyring = MemoryRecords(), KeyRing.ephemeral()
        self.shared_store = MemorySharedStore()
        self._made: list[CredentialsReplica] = []

    def one(self, *hosts: str) -> CredentialsReplica:
        self._made.append(CredentialsReplica(self.records, self.shared_store, self.keyring, *hosts))
        return self._made[-1]

    async def aclose(self) -> None:
        for one in self._made:
            await one.aclose()


@pytest.fixture
async def replicas() -> AsyncIterator[CredentialsReplicas]:
    made = CredentialsReplicas()
    yield made
    await made.aclose()
