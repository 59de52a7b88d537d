"""An issuer whose sign-in, ID tokens and refusals a test can change."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from msgspec.structs import replace

from gatepost_authz.config import DashboardClient, Issuer, RoleRule, TenantRule
from tests.dashboard.production_server import Provider
from tests.dashboard.server import CLIENT, SECRET, DashboardServer, open_dashboard_server
from tests.support.issuers import Idp, Receive, Scope, Send, respond
from tests.support.tokens import jwk, rsa_key


class ChangeableProvider(Provider):
    """
    Signs everybody in as `person`, and has a page to sign out.

    *refuses* is the status and error of its token endpoint, and *declines* the error of its
    sign-in, without `iss`. *audience* is the ID token's, and *metadata* are further members.
    """

    def __init__(self) -> None:
        Idp.__init__(self)
        self.person, self.asked = "alice", list[dict[str, str]]()
        self._codes: dict[str, dict[str, str]] = {}
        self.refuses: tuple[int, str] | None = None
        self.declines = ""
        self.audience: str | list[str] = CLIENT
        self.metadata: dict[str, Any] = {}
        self.keys["main"] = [jwk(rsa_key())]

    def _document(self, path: str) -> dict[str, Any] | None:
        document = super()._document(path)
        return document and (document if "keys" in document else document | self.metadata)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/main/token" and self.refuses:
            status, error = self.refuses
            await respond(send, status, json.dumps({"error": error}).encode())
        elif scope["path"] == "/main/authorize" and self.declines:
            asked = dict(parse_qsl(scope["query_string"].decode()))
            back = f"{asked['redirect_uri']}?error={self.declines}&state={asked['state']}"
            await respond(send, 303, b"", ((b"location", back.encode()),))
        else:
            await super()._answer(scope, receive, send)

    def identity(self, claims: dict[str, Any]) -> dict[str, Any]:
        """Return the claims of the ID token."""
        return claims | {"aud": self.audience}


@contextmanager
def changeable_provider(
    folder: Path, **client: Any
) -> Iterator[tuple[DashboardServer, ChangeableProvider]]:
    """Run a dashboard whose people sign in there; *client* are settings of `issuers.dashboard`."""
    with ChangeableProvider() as provider:
        provider.metadata = {
            "end_session_endpoint": f"{provider.issuer('main')}/end",
            "prompt_values_supported": ["none", "login", "select_account"],
        }
        secret = f"file:{folder / 'secret'}"
        issuer = Issuer(
            issuer=provider.issuer("main"),
            tenant=TenantRule(claim="org_id"),
            roles={"approver": RoleRule(claim="roles", value="approver")},
            dashboard=DashboardClient(client_id=CLIENT, client_secret=secret, **client),
        )
        (folder / "secret").write_text(SECRET)
        changed = open_dashboard_server(folder, change=lambda one: replace(one, issuers=(issuer,)))
        with changed as server:
            yield server, provider
