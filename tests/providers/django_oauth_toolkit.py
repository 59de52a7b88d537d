"""django-oauth-toolkit 3.4: every access token is opaque, and introspection says little."""

from collections.abc import Mapping
from typing import Any, ClassVar

from tests.providers.provider import GATEPOST, Provider


class DjangoOauthToolkit(Provider):
    """A Django project of one file."""

    name = "django-oauth-toolkit"
    version = "3.4.1"
    path = "/o"
    limits: ClassVar[Mapping[str, str]] = {
        "tenants": "its answers hold no organisation, so the issuer is one tenant",
        "keys": "its access tokens are opaque, so no key signs them",
        "roles": "its answers hold no claim besides scope, client_id, username and aud",
    }

    def launch(self) -> None:
        """Start it."""
        self.program("django_program")

    def table(self) -> dict[str, Any]:
        """Return its settings."""
        return {
            "preset": "django-oauth-toolkit",
            "tenant": {"value": "acme"},
            "dashboard": self.dashboard(scopes=["openid"]),
            "introspection": {"client_id": GATEPOST, "client_secret": "env:TEST_SECRET"},
        }
