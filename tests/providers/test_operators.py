"""What an operator does first: `gatepost issuer probe`, `gatepost check --online`, and serving."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.providers.conftest import ENVIRONMENT
from tests.providers.provider import GATEPOST, MACHINE, Pairing, configuration
from tests.support import commands
from tests.support.client import ResourceClient
from tests.support.commands import toml_file
from tests.support.measuring import each
from tests.support.processes import free_port
from tests.support.sign_in import SECRET

pytestmark = pytest.mark.slow
RECOGNISED_PRESETS = {
    "canaille": "canaille",
    "django-oauth-toolkit": "django-oauth-toolkit",
    "glewlwyd": "generic",
    "oidc-provider": "oidc-provider",
    "oidc-provider-opaque": "oidc-provider",
}
SECRETS = ENVIRONMENT | {"GATEPOST_INTROSPECTION_SECRET": SECRET, "WRONG_SECRET": "wrong"}


def probe_output(pair: Pairing, token: str) -> tuple[int, str, str]:
    """Exit code, table and findings of the probe, with Gatepost's own client at the provider."""
    site = pair.provider.site
    return commands.completed(
        *("issuer", "probe", pair.provider.issuer, "--resource", site.resource),
        *("--client-id", GATEPOST, "--ca-bundle", str(site.company.bundle)),
        env={"GATEPOST_PROBE_TOKEN": token, "GATEPOST_PROBE_CLIENT_SECRET": SECRET},
    )


def seen_caller(pair: Pairing, issuers: list[dict[str, Any]], token: str, folder: Path) -> Any:
    """Return the caller that a second Gatepost with these tables sees, on another port."""
    port = free_port()
    settings = configuration(pair.provider, ca_bundle=str(pair.provider.site.company.bundle))
    settings |= {"issuers": issuers, "listen": {"port": port}}
    client = ResourceClient(pair.provider.site.resource)
    client.port = port
    with commands.serve(toml_file(settings), folder, env=SECRETS):
        return client.whoami(token)


@each("kind", ["person", "machine"])
def test_the_probe_writes_a_table_that_works(pair: Pairing, kind: str, tmp_path: Path) -> None:
    """The table as printed, in a real Gatepost: the same token, and the same caller as before."""
    person = kind == "person"
    token = pair.provider.person_token("alice") if person else pair.provider.machine_token()
    code, table, errors = probe_output(pair, token)
    assert code == 0, errors
    issuers = tomllib.loads(table)["issuers"]
    caller, usual = seen_caller(pair, issuers, token, tmp_path), pair.client.whoami(token)

    assert [issuer["preset"] for issuer in issuers] == [RECOGNISED_PRESETS[pair.provider.name]]
    assert caller["subject_kind"] == ("user" if person else "client")
    assert caller["subject"] == usual["subject"]
    assert person or caller["subject"] == MACHINE
    assert caller["scopes"] == usual["scopes"]
    assert token not in table + errors
    assert SECRET not in table + errors


def test_the_probe_proposes_no_settings_for_id_and_refresh_tokens(pair: Pairing) -> None:
    """An ID token or a refresh token by mistake: the table must not be changed to accept it."""
    tokens = pair.provider.signed_in("alice")
    for name in ("id_token", "refresh_token"):
        if name not in tokens:
            continue
        code, table, errors = probe_output(pair, tokens[name])
        [issuer] = tomllib.loads(table)["issuers"]

        assert code == 1, errors
        assert "tokens" not in issuer
        assert "audiences" not in issuer
        assert "accepted" not in errors.partition("No setting")[0]


def check_output(settings: dict[str, Any], folder: Path) -> tuple[int, str, str]:
    """Return what `gatepost check --online` prints about a configuration."""
    path = folder / "gatepost.toml"
    path.write_text(toml_file(settings), encoding="utf-8")
    return commands.completed("check", "--online", "--config", str(path), env=SECRETS, cwd=folder)


def test_the_check_passes_for_a_sound_configuration(pair: Pairing, tmp_path: Path) -> None:
    """Metadata, keys, introspection and the dashboard's client, as the journeys use them."""
    bundle = str(pair.provider.site.company.bundle)
    code, output, errors = check_output(configuration(pair.provider, ca_bundle=bundle), tmp_path)

    assert code == 0, output + errors
    assert re.search(r"config\.[EW]13\d", output + errors) is None, output + errors
    assert f"{pair.provider.issuer}: metadata found" in output
    assert "the dashboard's client is known" in output
    if "introspection" in pair.provider.table():
        assert "introspection answers" in output


def test_the_check_names_a_wrong_secret(pair: Pairing, tmp_path: Path) -> None:
    """It names the secret of introspection, if any, and of the dashboard, but never its value."""
    bundle = str(pair.provider.site.company.bundle)
    wrong = {"client_secret": "env:WRONG_SECRET"}
    table = pair.provider.table()
    changes = {"dashboard": {**pair.provider.dashboard(), **wrong}}
    expected = {"issuers[0].dashboard"}
    if "introspection" in table:
        changes["introspection"] = {**table["introspection"], **wrong}
        expected.add("issuers[0].introspection")
    settings = configuration(pair.provider, ca_bundle=bundle, **changes)
    code, output, errors = check_output(settings, tmp_path)

    assert code == 1
    for setting in expected:
        assert setting in output + errors
    assert SECRET not in output + errors
