"""Canaille 0.3: people's access tokens are ID tokens, machines' are opaque."""

from collections.abc import Mapping
from typing import Any, ClassVar

from tests.providers.provider import GATEPOST, Provider


class Canaille(Provider):
    """Canaille, with its memory as the store."""

    name = "canaille"
    version = "0.3.6"
    sign_in_scopes = ("openid", "profile", "groups")
    understands_resource = False
    limits: ClassVar[Mapping[str, str]] = {
        "tenants": "no claim of its tokens holds an organisation, so the issuer is one tenant",
        "audience": "it ignores `resource`: the audience is what its administrator gave the client",
    }

    def launch(self) -> None:
        """Start it."""
        self.program("canaille_program")

    def table(self) -> dict[str, Any]:
        """Return its settings."""
        return {
            "preset": "canaille",
            "audiences": [GATEPOST],
            "tenant": {"value": "acme"},
            "roles": {"approver": {"claim": "groups", "value": "approver"}},
            "dashboard": self.dashboard(scopes=["openid", "profile", "groups"]),
            "introspection": {"client_id": GATEPOST, "client_secret": "env:TEST_SECRET"},
        }
