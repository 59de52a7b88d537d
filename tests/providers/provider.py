"""A real identity provider as the journeys see it: its clients, its people, its tokens."""

import base64
import hashlib
import json
import re
import secrets
import ssl
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

import httpx2
from joserfc.jwk import RSAKey

from tests.support.client import ResourceClient
from tests.support.commands import Gatepost
from tests.support.processes import Process, free_port, python_environment
from tests.support.programs import HTML, BrowserUser, PageForm, forms_of
from tests.support.proxies import CertificateAuthority
from tests.support.sign_in import SECRET

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv" / "providers" / "bin" / "python"
"""The interpreter that has the providers of `requirements.lock`; `make` installs it."""
HOST = "localhost"
REDIRECT = "http://127.0.0.1:33419/callback"
AGENT, MACHINE, GATEPOST, DASHBOARD = "agent", "machine", "gatepost", "gatepost-dashboard"
NEIGHBOUR, OTHER_MACHINE = "neighbour", "neighbour-machine"
"""Clients of another resource: one of people, one of its own."""
READ_SCOPE, WRITE_SCOPE = "files:read", "files:write"
LASTS_S = 300
PASSWORD = "correct horse battery staple"
NAME = re.compile(r"login|user|name|account", re.IGNORECASE)
ACCEPT_BUTTON = re.compile(
    r"accept|allow|authori[sz]e|approve|continue|sign|log ?in|yes|confirm|logout", re.I
)
REJECT_BUTTON = re.compile(r"deny|cancel|reject|refuse|abort|decline|forgot|no\b", re.IGNORECASE)


class ProviderUser(NamedTuple):
    """A person that the provider knows; *tenant* and *role* only where its tokens say them."""

    name: str
    tenant: str
    role: str = ""


PEOPLE = (ProviderUser("alice", "acme", "approver"), ProviderUser("bob", "globex"))


class ProviderClient(NamedTuple):
    """A client of the provider; without a secret it is a public one."""

    client_id: str
    grants: tuple[str, ...]
    redirects: tuple[str, ...] = ()
    secret: str = SECRET


CODE = ("authorization_code", "refresh_token")
CREDENTIALS = ("client_credentials",)


class ProviderSite(NamedTuple):
    """Where the provider runs, and the Gatepost that it issues tokens for."""

    folder: Path
    company: CertificateAuthority
    resource: str
    inspector_port: int

    @property
    def origin(self) -> str:
        """Return scheme, host and port of the Gatepost."""
        return "{0.scheme}://{0.netloc}".format(urlsplit(self.resource))

    @property
    def callback(self) -> str:
        """Return where the dashboard takes people back."""
        return f"{self.origin}/dashboard/callback"

    @property
    def signed_out(self) -> str:
        """Return where people come back to after signing out."""
        return f"{self.origin}/dashboard/signed-out"

    @property
    def inspector(self) -> str:
        """Return where the Inspector listens for its sign-in."""
        return f"http://127.0.0.1:{self.inspector_port}/oauth/callback"

    @property
    def neighbour(self) -> str:
        """Return another resource of the same provider."""
        return "https://neighbour.example/mcp"


class IdentityProvider(ABC):
    """
    One real identity provider over TLS with a certificate of a private company.

    A new one is a subclass in `conftest.py`: what it is started with, its `[[issuers]]` table, and
    what it cannot do. All else follows from its metadata.
    """

    name: ClassVar[str]
    version: ClassVar[str]
    path: ClassVar[str] = ""
    """What the issuer has behind its host."""
    scopes: ClassVar[tuple[str, ...]] = (READ_SCOPE, WRITE_SCOPE)
    """Scopes of Gatepost's tools, where it knows any."""
    sign_in_scopes: ClassVar[tuple[str, ...]] = ("openid",)
    """What a person's client asks for besides."""
    understands_resource: ClassVar[bool] = True
    """Whether `resource` (RFC 8707) decides about the audience."""
    limits: ClassVar[Mapping[str, str]] = {}
    """Journeys that it cannot go, and why."""

    def __init__(self, site: ProviderSite) -> None:
        self.site = site
        self.port = free_port()
        self.origin = f"https://{HOST}:{self.port}"
        self.issuer = self.origin + self.path
        self.certificate, self.key_file = site.company.certify(HOST)
        self.trusting = ssl.create_default_context(cafile=str(site.company.bundle))
        self.signing = self._new_key()
        self.lasts_s = LASTS_S
        self._process: Process | None = None
        self._metadata: dict[str, Any] = {}

    @property
    def clients(self) -> tuple[ProviderClient, ...]:
        """Return every client that the provider knows from the start."""
        return (
            ProviderClient(AGENT, CODE, (REDIRECT, self.site.inspector), secret=""),
            ProviderClient(MACHINE, CREDENTIALS),
            ProviderClient(NEIGHBOUR, CODE, (REDIRECT,)),
            ProviderClient(OTHER_MACHINE, CREDENTIALS),
            ProviderClient(GATEPOST, CREDENTIALS),
            ProviderClient(DASHBOARD, CODE, (self.site.callback,)),
        )

    @classmethod
    def missing(cls) -> str:
        """Return what this machine lacks to run it; empty if nothing."""
        return "" if PYTHON.exists() else f"no {PYTHON}: run `make .venv/providers`"

    @abstractmethod
    def start(self) -> None:
        """Start it by `run` with the keys and the lifetime that are set; return once it serves."""

    @abstractmethod
    def table(self) -> dict[str, Any]:
        """Return the `[[issuers]]` table that fits it, without `issuer`."""

    @staticmethod
    def dashboard(**settings: Any) -> dict[str, Any]:
        """Return the table of the dashboard's client."""
        return {"client_id": DASHBOARD, "client_secret": "env:TEST_SECRET", **settings}

    def run(
        self, command: Sequence[str], env: Mapping[str, str], cwd: Path | None = None
    ) -> Process:
        """Run the program, until `stop` ends it."""
        self._process = Process(command, env=env, cwd=cwd)
        return self._process

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def restart(self) -> None:
        """Have it take up other keys or another lifetime."""
        self.stop()
        self.start()

    def rotate(self) -> None:
        """Give it a new signing key; the old one is published no more."""
        self.signing = self._new_key()
        self.restart()

    def endpoint(self, name: str) -> str:
        """Return an endpoint of its metadata."""
        if not self._metadata:
            inserted = f"{self.origin}/.well-known/oauth-authorization-server{self.path}"
            appended = f"{self.issuer}/.well-known/openid-configuration"
            with self.http() as http:
                found = [http.get(url) for url in (inserted, appended)]
            documents = [answer.json() for answer in found if answer.status_code == 200]
            assert documents, found[-1].text
            self._metadata = {name: value for each in documents for name, value in each.items()}
        return str(self._metadata[f"{name}_endpoint"])

    def http(self) -> httpx2.Client:
        """Return a client that trusts the private company."""
        return httpx2.Client(verify=self.trusting, timeout=60)

    def sign_in(self, user_browser: "ProviderBrowser", answer: httpx2.Response) -> httpx2.Response:
        """Do what a person does with a page of it: by default, fill in its form."""
        return user_browser.fill_in(answer)

    def resource(self, resource: str) -> dict[str, str]:
        """Return the parameter that names a resource; none if it would be ignored."""
        return {"resource": resource} if self.understands_resource and resource else {}

    def machine_token(self, client: str = MACHINE, *, resource: str | None = None) -> str:
        """Return an access token by client credentials, for Gatepost unless told otherwise."""
        form = {
            "grant_type": "client_credentials",
            "scope": " ".join(self.scopes),
            **self.resource(self.site.resource if resource is None else resource),
        }
        return str(self.post("token", form, client)["access_token"])

    def person_token(self, name: str, client: str = AGENT, *, resource: str | None = None) -> str:
        """Return a person's access token."""
        return str(self.signed_in(name, client, resource=resource)["access_token"])

    def signed_in(
        self, name: str, client: str = AGENT, *, resource: str | None = None
    ) -> dict[str, Any]:
        """Return the token response for a code with PKCE, from a scripted browser."""
        verifier = secrets.token_urlsafe(48)
        digest = hashlib.sha256(verifier.encode()).digest()
        named = self.resource(self.site.resource if resource is None else resource)
        asked = {
            "response_type": "code",
            "client_id": client,
            "redirect_uri": REDIRECT,
            "scope": " ".join([*self.sign_in_scopes, *self.scopes]),
            "state": secrets.token_urlsafe(16),
            "nonce": secrets.token_urlsafe(16),
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
            **named,
        }
        with ProviderBrowser(self, name) as user_browser:
            back = user_browser.follow(f"{self.endpoint('authorization')}?{urlencode(asked)}")
        answered = parse_qs(urlsplit(back).query)
        assert answered.get("state") == [asked["state"]], back
        assert "code" in answered, back
        form = {
            "grant_type": "authorization_code",
            "code": answered["code"][0],
            "redirect_uri": REDIRECT,
            "code_verifier": verifier,
            **named,
        }
        return dict(self.post("token", form, client))

    def revoke(self, token: str, client: str = MACHINE) -> None:
        """Revoke a token of *client* (RFC 7009)."""
        self.post("revocation", {"token": token}, client)

    def introspected(self, token: str) -> dict[str, Any]:
        """Return what the provider tells Gatepost about a token (RFC 7662)."""
        return self.post("introspection", {"token": token}, GATEPOST)

    def post(self, endpoint: str, form: Mapping[str, str], client: str) -> Any:
        """Post a form as *client*; the answer must be a success."""
        secret = next(one.secret for one in self.clients if one.client_id == client)
        with self.http() as http:
            if secret:
                answer = http.post(self.endpoint(endpoint), data=form, auth=(client, secret))
            else:
                answer = http.post(self.endpoint(endpoint), data={**form, "client_id": client})
        assert answer.status_code == 200, f"{answer.status_code}: {answer.text[:2000]}"
        return answer.json() if answer.content else {}

    def program(self, name: str) -> None:
        """Run it by `provider_programs.py` on the providers' interpreter."""
        path = self.site.folder / f"{name}.json"
        path.write_text(json.dumps(self.settings()), encoding="utf-8")
        command = [str(PYTHON), "-m", "tests.providers.provider_programs", name, str(path)]
        self.run(command, python_environment(), ROOT).wait_for("^ready$", timeout_s=90)

    def settings(self) -> dict[str, Any]:
        """Return what a program has to know."""
        return {
            "host": HOST,
            "port": self.port,
            "certificate": self.certificate,
            "key": self.key_file,
            "folder": str(self.site.folder),
            "signing": self.signing.as_dict(private=True),
            "signing_pem": self.signing.as_pem(private=True).decode(),
            "lasts_s": self.lasts_s,
            "people": [{**person._asdict(), "password": PASSWORD} for person in PEOPLE],
            "clients": [client._asdict() for client in self.clients],
            "scopes": list(self.scopes),
            "resources": [self.site.resource, self.site.neighbour],
            "signed_out": self.site.signed_out,
        }

    @staticmethod
    def _new_key() -> RSAKey:
        return RSAKey.generate_key(2048, {"alg": "RS256", "use": "sig"}, auto_kid=True)


class ProviderBrowser(BrowserUser):
    """Signs in at *provider* as *name*, with one browser for all pages."""

    def __init__(self, provider: IdentityProvider, name: str) -> None:
        super().__init__(name)
        self.provider = provider
        self.http = provider.http()
        self.passwords = 0
        """How often a password was asked for."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.http.close()

    def browser(self) -> AbstractContextManager[httpx2.Client]:
        """Return the same browser for all pages."""
        return nullcontext(self.http)

    def submit(self, browser: httpx2.Client, answer: httpx2.Response) -> httpx2.Response:
        """Do what the provider says of its page."""
        assert answer.status_code == 200, f"{answer.status_code}: {answer.text[:2000]}"
        self.pages.append(answer.text)
        return self.provider.sign_in(self, answer)

    def get(self, url: str) -> httpx2.Response:
        """Open a page."""
        return self.http.get(url, headers=HTML)

    def fill_in(self, answer: httpx2.Response) -> httpx2.Response:
        """Fill in the first form that is posted, and press the button that agrees."""
        forms = [form for form in forms_of(answer.text) if form.method == "POST"]
        assert forms, f"nothing to press on {answer.url}: {answer.text[:3000]}"
        form = forms[0]
        data = {name: self._written(kind, name, value) for kind, name, value in form.inputs if name}
        for name, value, _ in self._agreeing(form)[:1]:
            data |= {name: value} if name else {}
        target = urljoin(str(answer.url), form.action or str(answer.url))
        # A browser names where a form comes from; providers check it against forged requests.
        here = "{0.scheme}://{0.netloc}".format(urlsplit(str(answer.url)))
        headers = {"Origin": here, "Referer": str(answer.url), "Accept": "text/html"}
        return self.http.post(target, data=data, headers=headers)

    def _written(self, kind: str, name: str, value: str) -> str:
        if kind == "password":
            self.passwords += 1
            return PASSWORD
        return self.name if kind in {"text", "email"} and NAME.search(name) else value

    @staticmethod
    def _agreeing(form: PageForm) -> list[tuple[str, str, str]]:
        buttons = [one for one in form.buttons if not REJECT_BUTTON.search(f"{one[1]} {one[2]}")]
        named = [one for one in buttons if one[1] == "accept"]
        return named or [one for one in buttons if ACCEPT_BUTTON.search(f"{one[1]} {one[2]}")]


class Pairing(NamedTuple):
    """A provider, and the Gatepost that accepts its tokens."""

    provider: IdentityProvider
    gatepost: Gatepost
    client: ResourceClient
    metrics: str
    """Where the Gatepost tells its counters."""

    def refusals(self) -> Counter[str]:
        """Count the tokens that were refused so far, by the reason in the log."""
        text = httpx2.get(self.metrics).text
        found = re.findall(
            r'^gatepost_tokens_refused_total\{.*reason="(\w+)".*\} (\d+)', text, re.M
        )
        return Counter({reason: int(float(count)) for reason, count in found if float(count)})


def configuration(
    provider: IdentityProvider, *, ca_bundle: str = "", **changes: Any
) -> dict[str, Any]:
    """Return Gatepost's settings for *provider*; *changes* are made to its `[[issuers]]`."""
    site = provider.site
    issuer = {"issuer": provider.issuer, "leeway_s": 0, "dashboard": provider.dashboard()}
    return {
        "resource": site.resource,
        "mode": "development",
        "listen": {"port": int(site.resource.rpartition(":")[2].partition("/")[0])},
        "network": {"ca_bundle": ca_bundle},
        "issuers": [issuer | provider.table() | changes],
        "scopes": {"baseline": [READ_SCOPE]},
        "tools": {"packs": ["demo"]},
        "storage": {"database": "sqlite:///gatepost.db"},
    }
