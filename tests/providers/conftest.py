"""The real providers, each with a Gatepost that trusts it and is started once for the whole run."""

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from tests.providers.provider import (
    DASHBOARD,
    GATEPOST,
    HOST,
    MACHINE,
    PASSWORD,
    PEOPLE,
    READ_SCOPE,
    WRITE_SCOPE,
    IdentityProvider,
    Pairing,
    ProviderBrowser,
    ProviderClient,
    ProviderSite,
    configuration,
)
from tests.support import commands
from tests.support.client import ResourceClient
from tests.support.commands import toml_file
from tests.support.measuring import eventually
from tests.support.processes import free_port, python_environment
from tests.support.programs import command, environment
from tests.support.proxies import CertificateAuthority
from tests.support.sign_in import SECRET, TokenForm


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

    def start(self) -> None:
        """Start it."""
        self.program("django_oauth_toolkit")

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

    def start(self) -> None:
        """Start it."""
        self.program("canaille")

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

    def start(self) -> None:
        """Start it."""
        settings = {
            "resources": {self.site.resource: self.form, self.site.neighbour: self.form},
            "scopes": [READ_SCOPE, WRITE_SCOPE],
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


PROGRAM = "glewlwyd"
TABLES = Path("/usr/share/dbconfig-common/data/glewlwyd/install/sqlite3")
MODULES = Path("/usr/lib/glewlwyd")
ADMIN = {"username": "admin", "password": "password"}
PLUGIN = "oidc"
CONFIGURATION = Path(__file__).with_name("glewlwyd.conf")
PARAMETERS = Path(__file__).with_name("glewlwyd_plugin.json")
"""What does not change of the plugin's parameters."""
RIGHTS = {"authorization_code": "code", "client_credentials": "client_credentials"}


class Glewlwyd(IdentityProvider):
    """
    A server with one instance of its OpenID Connect plugin.

    Its pages are programs in JavaScript, so the script speaks its API.
    """

    name = "glewlwyd"
    version = "2.7.5"
    path = f"/api/{PLUGIN}"
    limits: ClassVar[Mapping[str, str]] = {
        "revoked": "its tokens are signed, and it tells a client of that client's own tokens only",
    }

    @classmethod
    def missing(cls) -> str:
        """Return what this machine lacks."""
        if shutil.which(PROGRAM) and TABLES.exists():
            return ""
        return "no glewlwyd: run `apt-get install glewlwyd`"

    def start(self) -> None:
        """Start it with an empty database, and configure it by its administration API."""
        folder = self.site.folder
        database = folder / "glewlwyd.db"
        database.unlink(missing_ok=True)
        with sqlite3.connect(database) as store:
            store.executescript(TABLES.read_text(encoding="utf-8"))
        store.close()
        settings = folder / "glewlwyd.conf"
        settings.write_text(
            CONFIGURATION.read_text(encoding="utf-8").format(
                port=self.port,
                origin=self.origin,
                modules=MODULES,
                key=self.key_file,
                certificate=self.certificate,
                database=database,
            ),
            encoding="utf-8",
        )
        self.run([PROGRAM, "-c", str(settings)], python_environment(), folder)
        # It says that it has started before it listens.
        eventually(self._answers, within=15)
        self._configure()

    def table(self) -> dict[str, Any]:
        """Return its settings."""
        return {
            "preset": "generic",
            "tenant": {"claim": "org_id"},
            "roles": {"approver": {"claim": "role", "value": "approver"}},
        }

    def sign_in(self, user_browser: ProviderBrowser, answer: httpx2.Response) -> httpx2.Response:
        """Do what the script of its login page does: sign in, grant the scopes, go on."""
        asked = {
            name: value[0] for name, value in parse_qs(urlsplit(str(answer.url)).query).items()
        }
        api = f"{self.origin}/api"
        if asked.get("prompt") in {"end_session", "single_logout"}:
            return self._sign_out(user_browser, asked)
        user_browser.passwords += 1
        person = {"username": user_browser.name, "password": PASSWORD}
        self._done(user_browser.http.post(f"{api}/auth/", json=person))
        granted = {"scope": asked["scope"]}
        self._done(user_browser.http.put(f"{api}/auth/grant/{asked['client_id']}", json=granted))
        separator = "&" if "?" in asked["callback_url"] else "?"
        return user_browser.get(f"{asked['callback_url']}{separator}g_continue")

    def _sign_out(self, user_browser: ProviderBrowser, asked: dict[str, str]) -> httpx2.Response:
        api = f"{self.origin}/api"
        if asked.get("sid"):
            user_browser.http.request("DELETE", f"{api}/{asked['plugin']}/session/{asked['sid']}")
        self._done(user_browser.http.request("DELETE", f"{api}/auth/"))
        return user_browser.get(asked["callback_url"])

    def _answers(self) -> bool:
        try:
            with self.http() as http:
                return http.get(f"{self.origin}/config").status_code == 200
        except httpx2.TransportError:
            return False

    def _configure(self) -> None:
        with self.http() as http:
            api = f"{self.origin}/api"
            self._done(http.post(f"{api}/auth/", json=ADMIN))
            for scope in self.scopes:
                described = {
                    "name": scope,
                    "display_name": scope,
                    "password_required": True,
                    "password_max_age": 0,
                    "scheme": {},
                }
                self._done(http.post(f"{api}/scope/", json=described))
            users = http.get(f"{api}/mod/user/database").json()
            for kind, names in {"user": ("org_id", "role"), "client": ("org_id",)}.items():
                module = http.get(f"{api}/mod/{kind}/database").json() if users else {}
                known = module["parameters"]["data-format"]
                readable = {"multiple": False, "read": True, "write": True}
                known |= dict.fromkeys(names, readable)
                if kind == "client":
                    known["post_logout_redirect_uris"] = {**readable, "multiple": True}
                self._done(http.put(f"{api}/mod/{kind}/database", json=module))
                self._done(http.put(f"{api}/mod/{kind}/database/reset"))
            for person in PEOPLE:
                self._done(http.post(f"{api}/user/", json=self._person(person)))
            for client in self.clients:
                self._done(http.post(f"{api}/client/", json=self._client(client)))
            self._done(http.post(f"{api}/mod/plugin/", json=self._plugin()))

    def _person(self, person: Any) -> dict[str, Any]:
        return {
            "username": person.name,
            "name": person.name.title(),
            "email": f"{person.name}@example.com",
            "password": PASSWORD,
            "enabled": True,
            "scope": ["openid", "g_profile", *self.scopes],
            "org_id": person.tenant,
            **({"role": person.role} if person.role else {}),
        }

    def _client(self, client: ProviderClient) -> dict[str, Any]:
        rights = [RIGHTS.get(grant, grant) for grant in client.grants]
        described: dict[str, Any] = {
            "client_id": client.client_id,
            "name": client.client_id,
            "enabled": True,
            "confidential": bool(client.secret),
            "scope": ["openid", *self.scopes],
            "redirect_uri": list(client.redirects),
            "authorization_type": rights,
            "token_endpoint_auth_method": ["client_secret_basic" if client.secret else "none"],
            "org_id": "globex",
            "resource": [self.site.resource, self.site.neighbour],
        }
        if client.secret:
            described["client_secret"] = client.secret
        if client.client_id == DASHBOARD:
            described["post_logout_redirect_uris"] = [self.site.signed_out]
        return described

    def _plugin(self) -> dict[str, Any]:
        parameters = json.loads(PARAMETERS.read_text(encoding="utf-8")) | {
            "iss": self.issuer,
            "jwks-private": json.dumps({"keys": [self.signing.as_dict(private=True)]}),
            "access-token-duration": self.lasts_s,
            "register-client-credentials-scope": list(self.scopes),
            "register-resource-default": [self.site.resource],
        }
        return {
            "module": "oidc",
            "name": PLUGIN,
            "display_name": HOST,
            "parameters": parameters,
        }

    @staticmethod
    def _done(answer: httpx2.Response) -> None:
        assert answer.status_code == 200, (
            f"{answer.request.url} {answer.status_code}: {answer.text}"
        )


PROVIDERS: dict[str, type[IdentityProvider]] = {
    kind.name: kind
    for kind in (Canaille, DjangoOauthToolkit, Glewlwyd, OidcProvider, OpaqueOidcProvider)
}

ENVIRONMENT = {"TEST_SECRET": SECRET, **commands.FAST_LIMITS}


@pytest.fixture(scope="session")
def pairings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Pairing]]:
    """Yield a function that returns a provider's pair, and starts it when first asked for."""
    known: dict[str, Pairing] = {}
    with ExitStack() as stack:

        def pairing(name: str) -> Pairing:
            if name not in known:
                known[name] = _paired(PROVIDERS[name], tmp_path_factory.mktemp(name), stack)
            return known[name]

        yield pairing


def _paired(kind: type[IdentityProvider], folder: Path, stack: ExitStack) -> Pairing:
    if lacking := kind.missing():
        pytest.skip(lacking)
    company = CertificateAuthority(folder)
    site = ProviderSite(folder, company, f"http://127.0.0.1:{free_port()}/mcp", free_port())
    provider = kind(site)
    stack.callback(provider.stop)
    provider.start()
    config = toml_file(configuration(provider, ca_bundle=str(company.bundle)))
    metrics = f"127.0.0.1:{free_port()}"
    told = ENVIRONMENT | {"GATEPOST_LISTEN__METRICS": metrics}
    gatepost = stack.enter_context(commands.serve(config, folder, env=told))
    return Pairing(provider, gatepost, ResourceClient(site.resource), f"http://{metrics}/metrics")


@pytest.fixture(params=sorted(PROVIDERS))
def pair(request: pytest.FixtureRequest, pairings: Callable[[str], Pairing]) -> Pairing:
    """Return the pair of each provider in turn, or of those that a test names."""
    return pairings(request.param)
