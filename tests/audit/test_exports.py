"""Exports leave out client addresses, and chains without addresses still verify."""

from pathlib import Path

import pytest

from gatepost.audit.checkpoints import public_keys
from gatepost.audit.export import (
    exported,
    from_pem,
    of_row,
    read,
    verify_lines,
)
from gatepost.audit.record import AuditRecord, search
from gatepost.cli.siem import as_cef, as_otlp, attributes_of
from gatepost.storage.audit import AuditQuery
from gatepost.storage.memory.records import MemoryRecords
from tests.audit.conftest import AuditLog, audit_log, person

FOLDER = Path(__file__).parent
CLIENT_IPV4, CLIENT_IPV6 = "203.0.113.9", "2001:db8::7"
ITS_KEY = """\
# key b9f329fb
-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAU8nsHwCuuGMBcyrNH7myRLvEn2Z/Wq/20RKeiG97NG0=
-----END PUBLIC KEY-----
"""
"""Of `earlier.jsonl`, as `gatepost audit key` printed it."""
LABEL = "c6a2Label=Source IPv6 Address c6a2="


async def recorded_sign_in(peer: str, **settings: bool) -> AuditRecord:
    """Return the audit record of a sign-in from that address."""
    log = AuditLog(MemoryRecords())
    writer = log.process(**settings)
    await writer.events.note("acme", "signin", outcome="in", caller=person("alice"), peer=peer)
    await writer.aclose()
    (record,) = await search(log.store, "acme", AuditQuery())
    return record


ADDRESSES = {
    # what the connection says, then the record, and CEF's word for it
    CLIENT_IPV4: (CLIENT_IPV4, f"src={CLIENT_IPV4} "),
    CLIENT_IPV6: (CLIENT_IPV6, f"{LABEL}{CLIENT_IPV6} "),
    f"::ffff:{CLIENT_IPV4}": (CLIENT_IPV4, f"src={CLIENT_IPV4} "),
    "fe80::1%eth0": ("fe80::1%eth0", f"{LABEL}fe80::1 "),
    "": ("", ""),
    "a pipe": ("a pipe", ""),
    "1.2.3.4 src=5.6.7.8": ("1.2.3.4 src=5.6.7.8", ""),
}


@pytest.mark.requirement("AU7", "AU10")
@pytest.mark.parametrize("peer", ADDRESSES)
async def test_exports_name_the_client_address(peer: str) -> None:
    """The field names are those of the formats; a value that is no address is left out."""
    address, word = ADDRESSES[peer]
    record = await recorded_sign_in(peer)
    cef, otlp = as_cef("acme", record, "1"), attributes_of("acme", record)

    assert record.caller is not None
    assert record.caller.peer == otlp.get("client.address", "") == address
    assert word in cef
    assert ("src=" in cef, "c6a2=" in cef) == (word.startswith("src"), word.startswith("c6a2"))


@pytest.mark.requirement("AU10")
async def test_with_peers_off_no_address_is_recorded_or_exported() -> None:
    """The record and its exports contain no client address."""
    record = await recorded_sign_in(CLIENT_IPV4, peers=False)
    text = as_cef("acme", record, "1") + repr((record, attributes_of("acme", record)))

    assert CLIENT_IPV4 not in text
    assert "alice" in text


def test_a_chain_of_an_earlier_release_verifies() -> None:
    """The file was written before records had addresses."""
    lines = (FOLDER / "earlier.jsonl").read_bytes().splitlines()
    seen = verify_lines(lines, from_pem(ITS_KEY))
    _, _, rows = read(lines)

    assert (seen.bad_number, seen.records, seen.chains[0].proven) == (None, 3, 3)
    assert all(
        b"peer" not in (of_row(row).details or {}).get("caller", ())[1].encode() for row in rows
    )


@pytest.mark.requirement("AU6", "AU10")
async def test_a_chain_with_and_without_addresses_verifies(url: str) -> None:
    """Older records stay unchanged, and the stored and exported chain verifies."""
    async with audit_log(url) as log:
        await log.note(2)
        await log.sign()
        for peer in (CLIENT_IPV4, CLIENT_IPV6):
            await log.writer.events.note(
                "acme", "signin", outcome="in", caller=person("bob"), peer=peer
            )
        await log.sign()
        seen = await log.verify()
        lines = [line async for line in exported(log.store, "acme")]
        records = await search(log.store, "acme", AuditQuery(text="2001:DB8::7"))

    assert (seen.bad_number, seen.records) == (None, 4)
    assert [record.number for record in records] == [4]
    assert sum(CLIENT_IPV4.encode() in line for line in lines) == 1


CONTROL_CHARACTERS = "\x7f\x85\x9b\u061c\u200e\u2028\u202e\u2066\U000e0041"


@pytest.mark.requirement("AU10")
async def test_bidirectional_and_control_characters_are_escaped_in_exports(url: str) -> None:
    """Each format escapes them in a name, and the chain verifies."""
    async with audit_log(url) as log:
        for _ in range(2):
            await log.writer.events.note(
                "acme",
                "signin",
                outcome="in",
                caller=person(f"al{CONTROL_CHARACTERS}ice"),
                peer=CLIENT_IPV4,
            )
        await log.sign()
        seen = await log.verify()
        lines = [line async for line in exported(log.store, "acme")]
        records = await search(log.store, "acme", AuditQuery())
    texts = [line.decode() for line in lines]
    texts += [as_cef("acme", record, "1") for record in records]
    texts.append(as_otlp("acme", records, "1").decode())

    assert (seen.bad_number, seen.records) == (None, 2)
    assert verify_lines(lines, public_keys(log.keyring)).bad_number is None
    assert not any(letter in line for line in texts for letter in CONTROL_CHARACTERS)
    assert all(
        record.caller and record.caller.subject == f"al{CONTROL_CHARACTERS}ice"
        for record in records
    )
