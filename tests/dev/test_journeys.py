"""Whole journeys through `gatepost dev --as`: from the challenge to a call, over HTTP."""

import json
import re
import secrets
import time
import tomllib
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest

from gatepost_keys.imitation import IMITATIONS
from tests.support.commands import Gatepost, completed, dev, run, token
from tests.support.issuers import base64url_decoded
from tests.support.measuring import each
from tests.support.programs import BrowserUser
from tests.support.sign_in import code_challenge

pytestmark = pytest.mark.slow

CALLBACK = "http://localhost:8123/callback"
APP = re.compile(r"^Client id for your MCP client: (\S+) \((?:no secret|secret in (\S+))\)$", re.M)
MACHINE = re.compile(r"^Client id for programs: (\S+) \(secret in (\S+)\), at (\S+)$", re.M)
EXTRA_SCOPES = re.compile(r"^Every client has to ask for these scopes: (.+)$", re.M)
TABLES = re.compile(r"^A configuration for this provider looks like this:\n((?:  .*\n|\n)+)", re.M)
WITH_OPAQUE = [name for name, shape in IMITATIONS.items() if shape.opaque == "on request"]
NO_SCOPES = {"zitadel"}
"""Its signed tokens list no scopes, so that no tool which needs one can be called."""


class Journey(NamedTuple):
    """A running imitation, and what its output says to a person who reads it."""

    name: str
    gatepost: Gatepost
    folder: Path

    @property
    def metadata(self) -> dict[str, Any]:
        """Return the metadata of the first authorization server that the resource names."""
        with httpx2.Client(timeout=60) as http:
            challenge = http.post(self.gatepost.url, json={}).headers["www-authenticate"]
            match = re.search(r'resource_metadata="([^"]+)"', challenge)
            assert match is not None, challenge
            issuer = http.get(match[1]).json()["authorization_servers"][0]
            url = f"{issuer.removesuffix('/')}/.well-known/openid-configuration"
            answer = http.get(url)
        assert answer.status_code == 200, url
        document: dict[str, Any] = answer.json()
        assert document["issuer"] == issuer
        return document

    def scope(self) -> str:
        """Return the printed configuration's scopes and those that each client has to request."""
        extra = EXTRA_SCOPES.search(self.gatepost.output)
        scopes = ["openid", *([extra[1]] if extra else [])]
        written = self.tables().get("scopes", {})
        full = [name for name in written.get("implied", {}) if "/" in name]
        tools = [] if written or self.name in NO_SCOPES else ["files:write"]
        return " ".join([*scopes, *written.get("baseline", []), *full, *tools])

    def tables(self) -> dict[str, Any]:
        """Return the printed configuration."""
        match = TABLES.search(self.gatepost.output)
        assert match is not None, self.gatepost.output
        return tomllib.loads(match[1])

    def sign_in(self, user: str = "alice", **changes: str) -> dict[str, str]:
        """Return the token endpoint's answer to the code of a person with a browser."""
        match = APP.search(self.gatepost.output)
        assert match is not None, self.gatepost.output
        document, verifier = self.metadata, secrets.token_urlsafe(48)
        parameters = {
            "response_type": "code",
            "client_id": match[1],
            "redirect_uri": CALLBACK,
            "scope": self.scope(),
            "state": "s-1",
            "code_challenge": code_challenge(verifier),
            "code_challenge_method": "S256",
            "resource": self.gatepost.url,
        } | changes
        back = BrowserUser(user).follow(
            f"{document['authorization_endpoint']}?{urlencode(parameters)}"
        )
        query = parse_qs(urlsplit(back).query)
        assert "code" in query, back
        form = {
            "grant_type": "authorization_code",
            "code": query["code"][0],
            "redirect_uri": CALLBACK,
            "client_id": match[1],
            "code_verifier": verifier,
            "resource": self.gatepost.url,
        }
        if match[2]:
            form["client_secret"] = (self.folder / match[2]).read_text(encoding="utf-8").strip()
        answer = httpx2.post(document["token_endpoint"], data=form, timeout=60)
        assert answer.status_code == 200, answer.text
        tokens: dict[str, str] = answer.json()
        return tokens

    def machine(self) -> str:
        """Return the access token of the program that the output names."""
        match = MACHINE.search(self.gatepost.output)
        assert match is not None, self.gatepost.output
        shape = IMITATIONS[self.name]
        scope = shape.machine_scope.format(resource=self.gatepost.url) or self.scope()
        form = {
            "grant_type": "client_credentials",
            "client_id": match[1],
            "client_secret": (self.folder / match[2]).read_text(encoding="utf-8").strip(),
            "scope": scope.removeprefix("openid").strip(),
            "audience" if shape.audience == "audience" else "resource": self.gatepost.url,
        }
        answer = httpx2.post(match[3], data=form, timeout=60)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["access_token"])

    def call(self, access_token: str, tool: str = "whoami", **arguments: str) -> httpx2.Response:
        """Return the answer to a call of *tool*."""
        body = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {
                "name": tool,
                "arguments": arguments,
                "_meta": {
                    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                    "io.modelcontextprotocol/clientCapabilities": {},
                },
            },
        }
        headers = {
            "Authorization": f"Bearer {access_token}",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": "tools/call",
            "Mcp-Name": tool,
        }
        return httpx2.post(self.gatepost.url, json=body, headers=headers, timeout=60)

    def expect_caller(self, access_token: str, tenant: str = "acme") -> None:
        """Assert that the token gives access to that tenant, with the scopes of its tools."""
        answer = self.call(access_token)
        assert answer.status_code == 200, answer.text
        assert tenant in answer.text
        saved = self.call(access_token, "save_csv", path="a.csv", text="a\n1\n")
        assert (saved.status_code == 200) == (self.name not in NO_SCOPES), saved.text


@each("name", list(IMITATIONS))
def test_a_person_and_a_machine_get_from_the_challenge_to_a_call(tmp_path: Path, name: str) -> None:
    """The steps are metadata, sign-in, consent, tokens and call; an ID token is refused."""
    folder = tmp_path / name
    folder.mkdir()
    with dev(folder, "--as", name) as gatepost:
        journey = Journey(name, gatepost, folder)
        tokens = journey.sign_in()
        journey.expect_caller(tokens["access_token"])
        assert journey.call(tokens["id_token"]).status_code == 401
        if IMITATIONS[name].has_tenants:
            journey.expect_caller(journey.sign_in("bob")["access_token"], "globex")
        if IMITATIONS[name].machine:
            journey.expect_caller(journey.machine())
        assert journey.call(token(folder, "--tenant", "acme")).status_code == 200
        checked = run("check", "--config", str(folder / "state" / "dev.toml"), cwd=folder)
        assert checked.process.wait(30) == 0, checked.output
        checked.kill()


@each("name", WITH_OPAQUE)
def test_opaque_tokens_are_accepted_until_they_are_revoked(tmp_path: Path, name: str) -> None:
    """The gate introspects each token."""
    folder = tmp_path / name
    folder.mkdir()
    with dev(folder, "--as", name, "--opaque") as gatepost:
        journey = Journey(name, gatepost, folder)
        tokens = journey.sign_in()
        assert "." not in tokens["access_token"]
        answer = journey.call(tokens["access_token"])
        assert answer.status_code == 200, answer.text
        assert "acme" in answer.text
        other = journey.sign_in()["access_token"]
        app = APP.search(gatepost.output)
        assert app is not None
        gone = httpx2.post(
            journey.metadata["revocation_endpoint"],
            data={"token": other, "client_id": app[1]},
            timeout=60,
        )
        assert gone.status_code == 200
        assert journey.call(other).status_code == 401


@each("name", [name for name, shape in IMITATIONS.items() if shape.roles_claim])
def test_the_dashboard_knows_the_roles(tmp_path: Path, name: str) -> None:
    """alice may approve, by the claim in which the provider has roles."""
    folder = tmp_path / name
    folder.mkdir()
    with dev(folder, "--as", name) as gatepost, httpx2.Client(timeout=60) as http:
        http.base_url = gatepost.origin
        page = http.get("/dashboard/sign-in").text
        match = re.search(r'href="(/dashboard/sign-in/start[^"]+)"', page)
        assert match is not None, page
        response = http.get(match[1].replace("&amp;", "&"))
        assert (
            http.get(BrowserUser("alice").follow(response.headers["location"])).status_code == 303
        )
        home = http.get("/dashboard")
        assert (home.status_code, "acme" in home.text) == (200, True)


@each("name", ["okta", "entra-v2"])
def test_tokens_stay_valid_while_keys_rotate(tmp_path: Path, name: str) -> None:
    """The next key signs after each second, and the gate fetches unknown keys."""
    folder = tmp_path / name
    folder.mkdir()
    with dev(folder, "--as", name, "--rotate-keys-every", "1") as gatepost:
        journey = Journey(name, gatepost, folder)
        first = journey.sign_in()["access_token"]
        journey.expect_caller(first)
        until = time.monotonic() + 10
        while key_of(later := journey.sign_in()["access_token"]) == key_of(first):
            assert time.monotonic() < until, "the key still signs"
        journey.expect_caller(later)
        journey.expect_caller(first)


def key_of(access_token: str) -> str:
    """Return the `kid` of a signed token."""
    return str(json.loads(base64url_decoded(access_token.partition(".")[0]))["kid"])


def test_dev_answers_an_unknown_imitation_with_the_nearest_name(tmp_path: Path) -> None:
    """The exit code is 2."""
    code, _, complaints = completed("dev", "--port", "0", "--as", "keycloack", cwd=tmp_path)

    assert code == 2
    assert "Did you mean keycloak?" in complaints
