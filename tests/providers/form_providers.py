"""Providers whose people sign in by an HTML form: Canaille, django-oauth-toolkit, oidc-provider."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from tests.keys.conftest import TokenForm
from tests.providers.provider import (
    GATEPOST,
    MACHINE,
    PEOPLE,
    READ,
    WRITE,
    IdentityProvider,
    ProviderClient,
)
from tests.providers.provider_browser import PASSWORD
from tests.support.programs import command, environment


class DjangoOauthToolkit(IdentityProvider):
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


class Canaille(IdentityProvider):
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


class OidcProvider(IdentityProvider):
    """A server of `tests/node` whose people sign in by a form."""

    name = "oidc-provider"
    version = "9.13"
    limits: ClassVar[Mapping[str, str]] = {
        "revoked": "it revokes and introspects opaque tokens only",
    }
    form: ClassVar[TokenForm] = "jwt"
    machines: ClassVar[Mapping[str, str]] = {MACHINE: "globex"}
    """The tenants that machines' tokens name."""

    @classmethod
    def missing(cls) -> str:
        """Return what this machine lacks: nothing, the tests bring Node."""
        return ""

    def launch(self) -> None:
        """Start it."""
        settings = {
            "resources": {self.site.resource: self.form, self.site.neighbour: self.form},
            "scopes": [READ, WRITE],
            "tenants": {person.name: person.tenant for person in PEOPLE} | self.machines,
            "roles": {person.name: [person.role] for person in PEOPLE if person.role},
            "passwords": {person.name: PASSWORD for person in PEOPLE},
            "clients": [self._client(client) for client in self.clients],
            "signing": self.signing.as_dict(private=True),
            "tls": {"key": self.key_file, "certificate": self.certificate, "port": self.port},
            "lifetime_s": self.lasts_s,
        }
        arguments = command("authorization_server.mjs", json.dumps(settings))
        process = self.run(arguments, environment())
        assert json.loads(process.next_line())["issuer"] == self.issuer

    def table(self) -> dict[str, Any]:
        """Return its settings."""
        return {
            "preset": "oidc-provider",
            "tenant": {"claim": "org_id"},
            "roles": {"approver": {"claim": "roles", "value": "approver"}},
        }

    def _client(self, client: ProviderClient) -> dict[str, Any]:
        described: dict[str, Any] = {
            "client_id": client.client_id,
            "grant_types": list(client.grants),
            "redirect_uris": list(client.redirects),
            "post_logout_redirect_uris": [self.site.signed_out] if client.redirects else [],
            "response_types": ["code"] if client.redirects else [],
            "token_endpoint_auth_method": "client_secret_basic" if client.secret else "none",
        }
        return described | ({"client_secret": client.secret} if client.secret else {})


class OpaqueOidcProvider(OidcProvider):
    """The same with opaque access tokens."""

    name = "oidc-provider-opaque"
    limits: ClassVar[Mapping[str, str]] = {
        "keys": "its access tokens are opaque, so no key signs them",
    }
    form = "opaque"
    machines: ClassVar[Mapping[str, str]] = {}

    def table(self) -> dict[str, Any]:
        """Return its settings, with introspection and the tenant of the machine."""
        asking = {"client_id": GATEPOST, "client_secret": "env:TEST_SECRET"}
        machines = {MACHINE: {"tenant": "globex"}}
        return {**super().table(), "introspection": asking, "clients": machines}
