"""What the server itself keeps secret, wherever its configuration has it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gatepost.config.server_secrets import own_secrets
from gatepost.config.settings import Config
from gatepost.secrets.cache import SERVER_NAME
from gatepost.secrets.keyring import create

SECRET = "s3cret-of-the-server"
ADDRESS = f"postgresql://gatepost:{SECRET}@db.example.com/gatepost"


def secrets_of(**settings: Any) -> set[str]:
    """Return the secret values of a configuration."""
    tree = {
        "resource": "https://mcp.example.com/mcp",
        "issuers": [{"issuer": "https://id.example.com", "tenant": {"value": "acme"}}],
        **settings,
    }
    values = own_secrets(msgspec.convert(tree, Config))
    assert all(name.partition(".")[0] == SERVER_NAME for name in values)
    return set(values.values())


INTROSPECTION = [
    {
        "issuer": "https://id.example.com",
        "tenant": {"value": "acme"},
        "introspection": {"client_id": "gatepost", "client_secret": "env:OWN_SECRET"},
    }
]
SECRET_SETTINGS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "nowhere": ({}, set()),
    "an address": ({"storage": {"database": ADDRESS}}, {ADDRESS, SECRET}),
    "an address elsewhere": ({"storage": {"database": "env:OWN_ADDRESS"}}, {ADDRESS, SECRET}),
    "an address in a file": ({"storage": {"shared": "file:address"}}, {ADDRESS, SECRET}),
    "a query": (
        {"storage": {"database": f"postgresql://db/x?password={SECRET}"}},
        {f"postgresql://db/x?password={SECRET}", SECRET},
    ),
    "an issuer's client": ({"issuers": INTROSPECTION}, {SECRET}),
    "a reference to nothing": ({"storage": {"database": "env:NOT_THERE"}}, set()),
    "a password like a name": (
        {"storage": {"database": "postgresql://gatepost:gatepost@db.example.com/x"}},
        set(),
    ),
    "a short password": ({"storage": {"database": "postgresql://u:pw@db/x"}}, {
        "postgresql://u:pw@db/x"
    }),
}  # fmt: skip


@pytest.mark.parametrize(("settings", "values"), SECRET_SETTINGS.values(), ids=SECRET_SETTINGS)
def test_secrets_of_the_server_are_found_in_every_setting(
    settings: dict[str, Any],
    values: set[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The secrets are values of references and passwords in URLs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OWN_SECRET", SECRET)
    monkeypatch.setenv("OWN_ADDRESS", ADDRESS)
    (tmp_path / "address").write_text(f"{ADDRESS}\n")

    assert secrets_of(**settings) == values


def test_the_key_ring_file_is_not_one_secret(tmp_path: Path) -> None:
    """Each key of the ring is a secret of its own."""
    path = tmp_path / "ring.json"
    create(path)

    assert secrets_of(keys={"ring": f"file:{path}"}) == set()
