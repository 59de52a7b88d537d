"""What the server itself keeps secret, wherever its configuration has it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gatepost.config.own import own_secrets
from gatepost.keyring import KeyRing, create
from gatepost.settings import Config

SECRET = "s3cret-of-the-server"
ADDRESS = f"postgresql://gatepost:{SECRET}@db.example.com/gatepost"


def found(keyring: KeyRing | None = None, **settings: Any) -> set[str]:
    """The values that are known of a configuration, beside the ring's own keys."""
    tree = {
        "resource": "https://mcp.example.com/mcp",
        "issuers": [{"issuer": "https://id.example.com", "tenant": {"value": "acme"}}],
        **settings,
    }
    ring = keyring or KeyRing.ephemeral()
    values = own_secrets(msgspec.convert(tree, Config), ring)
    assert all(name.partition(".")[0] == "GATEPOST" for name in values)
    keys = own_secrets(msgspec.convert({**tree, **PLAIN}, Config), ring)
    return set(values.values()) - set(keys.values())


PLAIN: dict[str, Any] = {
    "storage": {"database": "memory:"},
    "issuers": [{"issuer": "https://id.example.com", "tenant": {"value": "acme"}}],
}
INTROSPECTION = [
    {
        "issuer": "https://id.example.com",
        "tenant": {"value": "acme"},
        "introspection": {"client_id": "gatepost", "client_secret": "env:OWN_SECRET"},
    }
]
PLACES: dict[str, tuple[dict[str, Any], set[str]]] = {
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


@pytest.mark.parametrize(("settings", "values"), PLACES.values(), ids=PLACES)
def test_it_is_found_wherever_it_is(
    settings: dict[str, Any],
    values: set[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """References of any setting, and passwords in addresses; nothing that is in any text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OWN_SECRET", SECRET)
    monkeypatch.setenv("OWN_ADDRESS", ADDRESS)
    (tmp_path / "address").write_text(f"{ADDRESS}\n")

    assert found(**settings) == values


def test_the_keys_of_the_ring_are_secrets(tmp_path: Path) -> None:
    """As the file has them; the file itself is no single value."""
    path = tmp_path / "ring.json"
    create(path)
    ring = KeyRing.load(f"file:{path}")
    config = msgspec.convert(
        {"resource": "https://x.example/mcp", "issuers": [], "keys": {"ring": f"file:{path}"}},
        Config,
    )

    (value,) = own_secrets(config, ring).values()
    assert value in path.read_text()
    assert value != path.read_text()
