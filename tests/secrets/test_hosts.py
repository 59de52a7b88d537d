"""Hosts that secrets are bound to: one spelling each, and no way to look like one of them."""

from pathlib import Path

import pytest

from gatepost.secrets.hosts import MAX_HOSTS, BoundSecret, checked_hosts, destination
from gatepost.secrets.keyring import KeyRing, create, rotate
from gatepost.secrets.names import SecretRefused
from gatepost.secrets.store import PURPOSE, SUBJECT, SecretStore, SecretUnreadable, _context
from gatepost.storage.memory.records import MemoryRecords
from gatepost_authz.address_policy import ToolAddressPolicy
from tests.secrets.test_vault import change_count, records, vault
from tests.support.measuring import each

__all__ = ["records", "vault"]  # fixtures

SECRET_VALUE = "hunter2-hunter2"
CYRILLIC = "\N{CYRILLIC SMALL LETTER BYELORUSSIAN-UKRAINIAN I}"
HOST_SPELLINGS = {
    "gitlab.com": "gitlab.com",
    "GitLab.COM.": "gitlab.com",
    "gitlab.com:443": "gitlab.com",
    "gitlab.com:8443": "gitlab.com:8443",
    "xn--mller-kva.example": "xn--mller-kva.example",
    "10.0.0.7:8080": "10.0.0.7:8080",
    "[2001:DB8:0::1]": "[2001:db8::1]",
    "[::1]:8443": "[::1]:8443",
}


@pytest.mark.parametrize(("entry", "spelt"), HOST_SPELLINGS.items(), ids=HOST_SPELLINGS)
def test_a_host_has_one_spelling(entry: str, spelt: str) -> None:
    """Upper case and other spellings of a host become one, and duplicates count once."""
    assert checked_hosts([entry, entry.upper()]) == (spelt,)


NO_HOSTS = {
    "": "not a name",
    "https://gitlab.com": "neither",
    "gitlab.com/api": "neither",
    "*.gitlab.com": "neither",
    "*": "neither",
    "gitlab.com,evil.example": "neither",
    "user:hunter2@gitlab.com": "user name",
    "gitlab.com:0": "port",
    "gitlab.com:": "port",
    "gitlab.com:99999": "not a URL",
    "127.1": "number",
    "git lab.com": "outside printable",
    f"g{CYRILLIC}tlab.com": "outside printable",
    "gitlab.com\\@evil.example": "backslash",
}


@each(("entry", "expected_text"), NO_HOSTS.items(), ids=[*map(ascii, NO_HOSTS)])
def test_an_invalid_host_is_refused(entry: str, expected_text: str) -> None:
    """A pattern is refused, too; the error does not repeat what may be the value."""
    with pytest.raises(SecretRefused, match=expected_text) as refused:
        checked_hosts([entry])

    assert "hunter2" not in str(refused.value)


def test_the_number_of_hosts_is_bounded() -> None:
    """One more than the most is refused."""
    names = [f"h{at}.example" for at in range(MAX_HOSTS + 1)]

    assert len(checked_hosts(names[1:])) == MAX_HOSTS
    with pytest.raises(SecretRefused, match=str(MAX_HOSTS)):
        checked_hosts(names)


ADDRESS_POLICY = ToolAddressPolicy(["inside.example:8080", "plain.example"])
HOST_OF_URL = {
    "https://gitlab.com/api/v4": "gitlab.com",
    "HTTPS://GITLAB.com.:443/": "gitlab.com",
    "https://gitlab.com:08443": "gitlab.com:8443",
    "https://gitlab.com:/": "gitlab.com",
    "http://inside.example:8080/x": "inside.example:8080",
    "https://[2001:db8:0::1]/": "[2001:db8::1]",
    "https://evil.example/gitlab.com": "evil.example",
    "https://evil.example?@gitlab.com": "evil.example",
    "https://gitlab.com.evil.example": "gitlab.com.evil.example",
    "https://gitlab.com..evil.example": None,
    "https://gitlab.com@evil.example": None,
    "https://gitlab.com:443@evil.example": None,
    "https://evil.example\\@gitlab.com": None,
    "https://evil.example\\.gitlab.com": None,
    "https://evil.example#@gitlab.com": None,
    "https://gitlab.com\t.evil.example": None,
    "https://gitlab.com\n@evil.example": None,
    "https://gitlab%2ecom": None,
    "https://gitlab\N{IDEOGRAPHIC FULL STOP}com": None,
    "https://\N{FULLWIDTH LATIN SMALL LETTER G}itlab.com": None,
    f"https://g{CYRILLIC}tlab.com": None,
    "https://gitlab.com:22": None,
    "https://gitlab.com:0": None,
    "https://gitlab.com:99999": None,
    "https://127.1": None,
    "http://gitlab.com": None,
    "http://plain.example": None,
    "http://inside.example:8081": None,
    "ftp://gitlab.com": None,
    "//gitlab.com": None,
    "gitlab.com": None,
    "": None,
}  # fmt: skip


@each(("url", "host"), HOST_OF_URL.items(), ids=[*map(ascii, HOST_OF_URL)])
def test_a_url_has_one_host_or_is_refused(url: str, host: str | None) -> None:
    """Gatepost reads it as its HTTP client does, and refuses an ambiguous URL."""
    if host is not None:
        assert destination(url, ADDRESS_POLICY) == host
    else:
        with pytest.raises(ValueError, match=r"it|port"):
            destination(url, ADDRESS_POLICY)


async def test_a_binding_is_sealed_with_its_value(
    vault: SecretStore, records: MemoryRecords
) -> None:
    """An attacker who can write to the database cannot choose another host for it."""
    await vault.put("acme", "API_KEY", SECRET_VALUE, ("gitlab.com",))
    entry = await records.for_tenant("acme").entries(SUBJECT).get("API_KEY")

    assert entry is not None
    assert b"gitlab" not in entry.value
    assert await vault.get("acme", "API_KEY") == BoundSecret(SECRET_VALUE, ("gitlab.com",))


async def test_a_new_value_keeps_the_hosts_of_the_old_one(
    records: MemoryRecords, vault: SecretStore
) -> None:
    """A new value keeps the old hosts unless others are given; new hosts keep the value."""
    assert await vault.put("acme", "API_KEY", SECRET_VALUE, ("gitlab.com",)) == ("gitlab.com",)
    assert await vault.put("acme", "API_KEY", SECRET_VALUE + "2") == ("gitlab.com",)
    assert await vault.get("acme", "API_KEY") == BoundSecret(SECRET_VALUE + "2", ("gitlab.com",))

    before = await change_count(records)
    assert await vault.bind("acme", "API_KEY", ("a.example", "b.example"))
    assert await vault.get("acme", "API_KEY") == BoundSecret(
        SECRET_VALUE + "2", ("a.example", "b.example")
    )
    assert await change_count(records) > before
    assert [row.hosts for row in await vault.rows("acme")] == [("a.example", "b.example")]

    assert await vault.put("acme", "API_KEY", SECRET_VALUE, ()) == ()
    assert not await vault.bind("acme", "OTHER", ())
    assert not await vault.bind("globex", "API_KEY", ())


async def test_concurrent_setting_and_binding_keep_both_changes(
    vault: SecretStore, records: MemoryRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later write sees the earlier one."""
    await vault.put("acme", "API_KEY", SECRET_VALUE, ("gitlab.com",))
    other, seal = SecretStore(records, vault.keyring), vault.keyring.seal

    def between(do: SecretStore, value: str) -> None:
        """Have *value* set, and bound to b.example, in the middle of what comes next."""

        def interrupted(purpose: str, payload: bytes, *, context: bytes = b"") -> str:
            monkeypatch.setattr(vault.keyring, "seal", seal)
            entries = records.for_tenant("acme").entries(SUBJECT)
            entry = entries.records["API_KEY"]
            sealed = do._sealed("acme", "API_KEY", BoundSecret(value, ("b.example",)))
            entries.records["API_KEY"] = type(entry)(
                key="API_KEY", value=sealed, revision=entry.revision + 1, updated_at=5.0
            )
            return seal(purpose, payload, context=context)

        monkeypatch.setattr(vault.keyring, "seal", interrupted)

    between(other, SECRET_VALUE)
    assert await vault.put("acme", "API_KEY", SECRET_VALUE + "2") == ("b.example",)
    between(other, SECRET_VALUE + "3")
    assert await vault.bind("acme", "API_KEY", ("c.example",))

    assert await vault.get("acme", "API_KEY") == BoundSecret(SECRET_VALUE + "3", ("c.example",))


async def test_hosts_outlive_rotations(records: MemoryRecords, tmp_path: Path) -> None:
    """They are sealed with the value; a new value of an unreadable secret is unbound."""
    path = tmp_path / "ring.json"
    create(path)
    vault = SecretStore(records, KeyRing.load(f"file:{path}"))
    await vault.put("acme", "API_KEY", SECRET_VALUE, ("gitlab.com",))
    rotate(path, keep=1)
    vault.keyring.reread()
    assert (await vault.reseal()).sealed == 1
    assert await vault.get("acme", "API_KEY") == BoundSecret(SECRET_VALUE, ("gitlab.com",))

    rotate(path, keep=1)
    rotate(path, keep=1)
    lost = SecretStore(records, KeyRing.load(f"file:{path}"))
    with pytest.raises(SecretUnreadable):
        await lost.bind("acme", "API_KEY", ("a.example",))
    assert await lost.put("acme", "API_KEY", SECRET_VALUE) == ()


async def test_a_secret_sealed_by_another_version_is_an_error(
    vault: SecretStore, records: MemoryRecords
) -> None:
    """It is not taken for a secret without hosts."""
    sealed = vault.keyring.seal(PURPOSE, b"hunter2", context=_context("acme", "OLD"))
    await records.for_tenant("acme").entries(SUBJECT).put("OLD", sealed.encode(), now=0.0)

    with pytest.raises(SecretUnreadable, match="another version"):
        await vault.get("acme", "OLD")
