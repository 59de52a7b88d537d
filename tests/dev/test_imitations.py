"""Every imitation in process: its issuer's tokens at a gate with the table that `dev` prints."""

import json
import re
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import click
import msgspec
import pytest

from gatepost.dev.command import imitation_of
from gatepost.dev.imitating import (
    MACHINE_CLIENT,
    client_id,
    tables,
)
from gatepost_authz.config import Issuer
from gatepost_authz.errors import InvalidToken, WrongAudience
from gatepost_authz.presets import PRESETS
from gatepost_authz.token_rules import CallerMark, TokenRules
from gatepost_keys.imitation import IMITATIONS, Imitation
from gatepost_keys.imitation.shape import DEVELOPMENT
from gatepost_keys.issuer.state import CLI_CLIENT
from tests.architecture.source import ROOT
from tests.dev.test_other_servers import APP_CALLBACK, TOOL_SCOPES, Imitated
from tests.support.issuers import base64url_decoded
from tests.support.measuring import each
from tests.support.sign_in import RESOURCE, redirect_query

NAMES = list(IMITATIONS)
SIGNED_PROVIDERS = [name for name, shape in IMITATIONS.items() if shape.opaque != "always"]
WITH_MACHINES = [name for name in SIGNED_PROVIDERS if IMITATIONS[name].machine]
TREATED_AS_PEOPLE = {"zitadel", "authentik"}
"""Nothing in their tokens proves a machine (docs/providers.md)."""


@pytest.fixture(scope="module")
def imitated_issuer(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Imitated]:
    """Return one issuer per provider for all tests of this file: its RSA keys take long to make."""
    return cache(lambda name: Imitated(name, tmp_path_factory.mktemp("state")))


@pytest.fixture
def imitated(imitated_issuer: Callable[[str], Imitated]) -> Callable[[str], Imitated]:
    """Return a function that gives the issuer of a provider with a signed-out browser."""

    def fresh(name: str) -> Imitated:
        provider = imitated_issuer(name)
        provider.walk.http.cookies.clear()
        return provider

    return fresh


@each("name", SIGNED_PROVIDERS)
async def test_a_person_is_accepted_by_the_printed_table(
    imitated: Callable[[str], Imitated], name: str
) -> None:
    """After the code flow with PKCE, the gate has the tenant, the person and the client."""
    provider = imitated(name)
    answer = await provider.sign_in()
    assert answer.status_code == 200, answer.text
    caller = await provider.verify(answer.json()["access_token"])

    assert (caller.tenant_id, caller.subject_kind) == ("acme", "user")
    assert caller.client_id == provider.walk.client_id
    # The issuers of a template cannot make anyone an operator.
    roles = {"approver", "admin"} | ({"operator"} if "{" not in provider.shape.issuer else set())
    assert caller.roles == (roles if provider.shape.roles_claim else set())
    # Zitadel's signed tokens list no scopes (https://zitadel.com/docs/apis/openidoauth/claims).
    assert (caller.scopes >= TOOL_SCOPES) == (name != "zitadel")


@each("name", SIGNED_PROVIDERS)
async def test_the_id_of_a_person_is_stable_and_unique(
    imitated: Callable[[str], Imitated], name: str
) -> None:
    """It stays the same between two sign-ins and differs between two people."""
    provider = imitated(name)
    first = (await provider.sign_in("alice")).json()["access_token"]
    again = (await provider.sign_in("alice")).json()["access_token"]
    provider.walk.http.cookies.clear()
    other = (await provider.sign_in("dave")).json()["access_token"]
    callers = [await provider.verify(token) for token in (first, again, other)]

    assert callers[0].principal_key == callers[1].principal_key != callers[2].principal_key


@each("name", [name for name in SIGNED_PROVIDERS if IMITATIONS[name].has_tenants])
async def test_a_person_of_another_tenant_has_that_tenant(
    imitated: Callable[[str], Imitated], name: str
) -> None:
    """The token spells the tenant like the provider, and the printed table maps it."""
    provider = imitated(name)
    caller = await provider.verify((await provider.sign_in("bob")).json()["access_token"])

    assert caller.tenant_id == "globex"


@each("name", [name for name in NAMES if not IMITATIONS[name].has_tenants])
async def test_a_provider_without_tenants_offers_people_of_one_tenant(
    imitated: Callable[[str], Imitated], name: str
) -> None:
    """A person of another tenant cannot sign in, because the token cannot name the tenant."""
    provider = imitated(name)
    page = await provider.walk.authorize(scope=provider.scope, redirect_uri=APP_CALLBACK)

    assert [person.username for person in provider.walk.issuer.settings.people] == ["alice", "dave"]
    assert "Alice Archer" in page.text
    assert "Bob Bright" not in page.text


@each("name", WITH_MACHINES)
async def test_a_machine_is_accepted_by_the_printed_table(
    imitated: Callable[[str], Imitated], name: str
) -> None:
    """The caller is a client, except for providers that describe machines like people."""
    provider = imitated(name)
    answer = await provider.machine()
    assert answer.status_code == 200, answer.text
    caller = await provider.verify(answer.json()["access_token"])

    assert caller.tenant_id == "acme"
    assert caller.client_id == client_id(provider.shape, MACHINE_CLIENT)
    assert caller.subject_kind == ("user" if name in TREATED_AS_PEOPLE else "client")
    assert "refresh_token" not in answer.json()


async def test_a_token_rule_can_mark_a_zitadel_service_user_as_a_machine(
    imitated: Callable[[str], Imitated],
) -> None:
    """Zitadel's client id of a service user is its login name."""
    provider = imitated("zitadel")
    named = CallerMark(claim="client_id", value=client_id(provider.shape, MACHINE_CLIENT))
    rules = TokenRules(machine=(CallerMark(subject_is_client=True), named))
    table = msgspec.structs.replace(provider.config.issuers[0], tokens=rules)
    machine = await provider.verify((await provider.machine()).json()["access_token"], table=table)
    person = await provider.verify((await provider.sign_in()).json()["access_token"], table=table)

    assert (machine.subject_kind, person.subject_kind) == ("client", "user")


@each("name", [name for name in NAMES if not IMITATIONS[name].machine])
async def test_google_refuses_client_credentials(
    imitated: Callable[[str], Imitated], name: str
) -> None:
    """Google has no client credentials for a client of its sign-in."""
    answer = await imitated(name).machine()

    assert answer.json()["error"] == "unauthorized_client"


@pytest.mark.requirement("C24")
@each("name", NAMES)
async def test_an_id_token_of_each_imitation_is_refused(
    imitated: Callable[[str], Imitated], name: str
) -> None:
    """It has the provider's claims and header, and is signed by the same keys."""
    provider = imitated(name)
    token = (await provider.sign_in()).json()["id_token"]

    with pytest.raises(InvalidToken):
        await provider.verify(token)


@each("name", SIGNED_PROVIDERS)
async def test_a_token_for_another_audience_is_refused(
    imitated: Callable[[str], Imitated], name: str
) -> None:
    """The printed audiences of that server do not name the token's audience."""
    provider = imitated(name)
    token = (await provider.sign_in()).json()["access_token"]
    elsewhere = msgspec.structs.replace(provider.config.issuers[0], audiences=("another",))

    with pytest.raises(WrongAudience):
        await provider.verify(token, table=elsewhere, resource="http://127.0.0.1:8000/other")


@each("name", SIGNED_PROVIDERS)
async def test_the_generic_preset_refuses_tokens_that_differ_from_rfc_9068(
    imitated: Callable[[str], Imitated], name: str
) -> None:
    """Other providers need their own preset."""
    provider = imitated(name)
    token = (await provider.sign_in()).json()["access_token"]
    table = msgspec.structs.replace(provider.config.issuers[0], preset="generic")
    follows = {"logto": True, "oidc-provider": True}.get(name, False)
    if follows:
        # Logto signs with ES384, which RFC 9068 leaves open.
        table = msgspec.structs.replace(table, algorithms=("ES384",) if name == "logto" else ())
        assert (await provider.verify(token, table=table)).tenant_id == "acme"
        return

    with pytest.raises(InvalidToken):
        await provider.verify(token, table=table)


@each("name", SIGNED_PROVIDERS)
async def test_tokens_of_the_next_key_are_accepted_and_of_a_removed_key_refused(
    imitated: Callable[[str], Imitated], name: str
) -> None:
    """A token of the next key is accepted; one of a removed key is refused."""
    provider = imitated(name)
    cli = (CLI_CLIENT, provider.walk.issuer.settings.cli_secret)
    before = (await provider.sign_in()).json()["access_token"]
    provider.walk.issuer.rotate()
    after = (await provider.sign_in()).json()["access_token"]

    assert key_of(before) != key_of(after)
    assert (await provider.verify(before)).tenant_id == "acme"
    assert (await provider.verify(after)).tenant_id == "acme"
    rotated = await provider.walk.http.post("/dev-as/rotate", data={"remove_old": "true"}, auth=cli)
    assert rotated.status_code == 200
    with pytest.raises(InvalidToken):
        await provider.verify(before)


async def test_keys_rotate_by_the_clock(tmp_path: Path) -> None:
    """No rotation comes before that time."""
    provider = Imitated("logto", tmp_path, rotate_keys_every_s=100)
    key_ids = []
    for wait in (0, 99, 1, 100):
        provider.walk.clock.now += wait
        key_ids.append(key_of((await provider.sign_in()).json()["access_token"]))

    assert key_ids[0] == key_ids[1]
    assert len(set(key_ids)) == 3


@each("name", ["okta", "auth0"])
async def test_the_next_key_is_published_ahead(
    imitated: Callable[[str], Imitated], name: str
) -> None:
    """A gate that fetched the keys before the rotation knows the next key."""
    provider = imitated(name)
    path = provider.walk.path("jwks")
    before = {key["kid"] for key in (await provider.walk.http.get(path)).json()["keys"]}
    provider.walk.issuer.rotate()

    assert key_of((await provider.sign_in()).json()["access_token"]) in before


async def test_cognito_signs_access_and_id_tokens_with_different_keys(
    imitated: Callable[[str], Imitated],
) -> None:
    """Each token has its own `kid`."""
    answer = (await imitated("cognito").sign_in()).json()

    assert key_of(answer["access_token"]) != key_of(answer["id_token"])


@each("name", NAMES)
async def test_a_refresh_returns_a_new_refresh_token_only_if_the_provider_rotates(
    imitated: Callable[[str], Imitated], name: str
) -> None:
    """The refreshed access token is accepted."""
    provider = imitated(name)
    first = (await provider.sign_in()).json()
    answer = await provider.walk.refresh(
        first["refresh_token"], **({"client_secret": provider.secret} if provider.secret else {})
    )

    assert answer.status_code == 200, answer.text
    assert ("refresh_token" in answer.json()) == provider.shape.refresh_rotates
    if name in SIGNED_PROVIDERS:
        assert (await provider.verify(answer.json()["access_token"])).tenant_id == "acme"


@each("name", [name for name in NAMES if IMITATIONS[name].refresh == "offline_access"])
async def test_no_refresh_token_is_issued_without_offline_access(
    imitated: Callable[[str], Imitated], name: str
) -> None:
    """Only providers that require the scope are tested."""
    provider = imitated(name)
    scope = provider.scope.replace("offline_access ", "")

    assert "refresh_token" not in (await provider.sign_in(scope=scope)).json()


@each("name", NAMES)
def test_the_printed_tables_equal_the_running_configuration(
    imitated: Callable[[str], Imitated], name: str
) -> None:
    """The printed lines are TOML and give the tables of the running server."""
    provider = imitated(name)
    written = tomllib.loads("\n".join(tables(provider.config)))

    assert msgspec.convert(written["issuers"], tuple[Issuer, ...]) == provider.config.issuers
    assert written.get("scopes", {}) == {
        name: json.loads(json.dumps(value))
        for name, value in msgspec.to_builtins(provider.config.scopes).items()
        if name in written.get("scopes", {})
    }
    assert provider.config.issuers[0].preset in PRESETS


def test_an_unknown_imitation_is_answered_with_the_nearest_name() -> None:
    """An operator who writes `entra` or `keycloack` reads the right name."""
    for name, like in (("entra", "entra-v2"), ("keycloack", "keycloak"), ("Okta", "okta")):
        with pytest.raises(click.BadParameter, match=f"Did you mean {like}"):
            imitation_of(name, opaque=False)


def test_opaque_tokens_are_refused_for_providers_without_them() -> None:
    """Entra has no introspection for resource servers."""
    assert imitation_of("hydra", opaque=True) == IMITATIONS["hydra"]
    for name in ("entra-v2", ""):
        with pytest.raises(click.BadParameter, match="zitadel, hydra, logto, oidc-provider"):
            imitation_of(name, opaque=True)


@each("name", NAMES)
def test_every_field_that_differs_names_its_documentation(name: str) -> None:
    """It differs from the development issuer's field."""
    shape = IMITATIONS[name]
    derived = {
        "name",
        "sources",
        "client",
        "org",
        "tenant_claim",
        "roles_claim",
        "audiences",
        "api",
    }
    differing = {
        field
        for field in Imitation.__struct_fields__
        if getattr(shape, field) != getattr(DEVELOPMENT, field)
    }

    assert differing - derived - shape.sources.keys() == set()
    assert shape.sources.keys() - differing - derived == set()
    assert all(url.startswith("https://") for url in shape.sources.values())


async def test_cognito_tokens_without_audience_are_accepted_by_client_id(
    imitated: Callable[[str], Imitated],
) -> None:
    """Without `resource` there is no `aud`, so the client id in `audiences` decides."""
    provider = imitated("cognito")
    token = (await provider.sign_in(resource=None)).json()["access_token"]
    assert (await provider.verify(token)).client_id == provider.walk.client_id

    stranger = msgspec.structs.replace(provider.config.issuers[0], audiences=("another",))
    with pytest.raises(WrongAudience, match="no_audience"):
        await provider.verify(token, table=stranger)


@each("name", ["auth0", "logto"])
async def test_auth0_and_logto_issue_opaque_tokens_without_an_audience(
    imitated: Callable[[str], Imitated], name: str
) -> None:
    """Only the provider itself can use such a token."""
    answer = await imitated(name).sign_in(resource=None, audience=None)

    assert "." not in answer.json()["access_token"]


async def test_entra_refuses_scopes_that_do_not_match_the_resource(
    imitated: Callable[[str], Imitated],
) -> None:
    """The redirect has AADSTS9010010, and no sign-in takes place."""
    provider = imitated("entra-v2")
    answer = await provider.walk.authorize(
        scope=provider.scope, redirect_uri=APP_CALLBACK, resource=f"{RESOURCE}/"
    )
    query = redirect_query(answer)

    assert query["error"] == "invalid_target"
    assert query["error_description"].startswith("AADSTS9010010: ")
    assert "iss" not in query


async def test_entra_issues_a_graph_token_without_a_scope_of_the_api(
    imitated: Callable[[str], Imitated],
) -> None:
    """The gate refuses the token for its audience."""
    provider = imitated("entra-v2")
    token = (await provider.sign_in(scope="openid offline_access", resource=None)).json()

    with pytest.raises(WrongAudience):
        await provider.verify(token["access_token"])


def key_of(token: str) -> str:
    """Return the `kid` of a signed token."""
    return str(json.loads(base64url_decoded(token.partition(".")[0]))["kid"])


def test_the_provider_page_describes_every_imitation() -> None:
    """Its table has one row for each name that `--as` takes."""
    page = (ROOT / "docs/providers.md").read_text(encoding="utf-8")
    section = page.partition("## Try a provider without an account")[2].partition("\n## ")[0]

    assert re.findall(r"^\| `([a-z][\w-]*)` \|", section, re.M) == NAMES
