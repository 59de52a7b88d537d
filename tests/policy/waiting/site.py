"""A running server whose tool needs approval, and somebody who gives it."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from gatepost.policy.approvals.request import ApprovalRequest, Operator
from tests.policy.waiting import toolset
from tests.support.issuers import Idp
from tests.support.measuring import eventually
from tests.support.server import Server, issuer_settings, running_server

WITHIN_S = 30
NOBODY = Operator("nobody in particular")


class Site:
    """The server, a token for it, and its approvers."""

    def __init__(self, server: Server) -> None:
        self.house = server
        self.token = server.token()
        self.url = server.client.resource

    def waits(self, label: str) -> ApprovalRequest | None:
        """The request for this label, if it waits."""
        service = self.house.services.approvals
        for request in self._there(service.waiting("acme")):
            if json.loads(request.arguments)["label"] == label:
                return request  # type: ignore[no-any-return]
        return None

    def decide(self, label: str) -> None:
        """Wait until a call asks for it; then approve it, or reject what is called so."""
        eventually(lambda: self.waits(label), within=WITHIN_S)
        request, service = self.waits(label), self.house.services.approvals
        assert request is not None
        if label.startswith("bad"):
            self._there(service.reject("acme", request.id, NOBODY, "It is bad."))
        else:
            self._there(service.approve("acme", request.id, NOBODY))

    def streams(self) -> int:
        """How many answers are streams that stay open."""
        return len(self.house.services.streams)

    @contextmanager
    def deciding(
        self, *labels: str, once: Callable[[int], object] = lambda decided: True
    ) -> Iterator[None]:
        """
        Somebody decides about these, one after the other, for the time of a block.

        Each as soon as it waits, and *once* holds for how many were decided before.
        """
        failed: list[BaseException] = []

        def decide() -> None:
            try:
                for decided, label in enumerate(labels):
                    eventually(partial(once, decided), within=WITHIN_S)
                    self.decide(label)
            except BaseException as error:  # noqa: BLE001 - raised below, in the test's own thread
                failed.append(error)

        somebody = threading.Thread(target=decide, daemon=True)
        somebody.start()
        yield
        somebody.join(WITHIN_S)
        assert not somebody.is_alive()
        assert not failed, failed

    def _there(self, work: Any) -> Any:
        loop = self.house.loop
        assert loop is not None
        return asyncio.run_coroutine_threadsafe(work, loop).result(WITHIN_S)


@contextmanager
def open_site(folder: Path, **settings: Any) -> Iterator[Site]:
    """Serve the tool that needs approval, and a dashboard, which is where pages are."""
    (folder / "secret").write_text("a-secret-of-the-dashboard", encoding="utf-8")
    page = {"client_id": "gatepost-dashboard", "client_secret": f"file:{folder / 'secret'}"}
    roles = {"approver": {"claim": "roles", "value": "approver"}}
    usual: dict[str, Any] = {
        "tools": {"load": [str(Path(toolset.__file__))]},
        "tenancy": {"create_on_first_use": True},
        "approvals": {"require": ["sign"]},
    }
    with (
        Idp() as idp,
        running_server(
            idp, [issuer_settings(idp, dashboard=page, roles=roles)], **(usual | settings)
        ) as server,
    ):
        yield Site(server)
