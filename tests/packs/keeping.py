"""Secrets of tenants, set while the server runs."""

import asyncio
from typing import Any

from gatepost.services import Services
from tests.packs.office import Office, Worker


class Keeping:
    """Remembers the server's loop; `Keeping().begin` is what a house takes as *prepare*."""

    def begin(self, services: Services) -> None:
        self._services, self._loop = services, asyncio.get_running_loop()

    def put(self, tenant: str, *hosts: str, **secrets: str) -> None:
        """Set these secrets of a tenant, as `gatepost secrets set` does with these hosts."""
        for name, value in secrets.items():
            putting = self._services.secrets.put(tenant, name, value, hosts)
            asyncio.run_coroutine_threadsafe(putting, self._loop).result(10)

    def worker(self, office: Office, protocol: Any, *hosts: str, **secrets: str) -> Worker:
        """An agent of a new tenant that has these secrets, bound to these hosts."""
        worker = office.worker(protocol)
        self.put(worker.tenant, *hosts, **secrets)
        return worker
