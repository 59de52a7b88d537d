"""The key ring: what it signs, what it takes back, and the file it lives in."""

import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from gatepost.secrets import keyring as module
from gatepost.secrets.keyring import KeyRing, KeyRingError, create, rotate


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keyring.json"
    create(path)
    return path


def load(path: Path) -> KeyRing:
    return KeyRing.load(f"file:{path}")


def test_a_ring_verifies_its_own_signature(path: Path) -> None:
    """Any process with the file accepts the signature, and it fits a header."""
    token = load(path).sign("session", b"\x00payload")

    assert load(path).verify("session", token) == b"\x00payload"
    assert all("\x21" <= letter <= "\x7e" for letter in token)


def changed_token(token: str, at: int) -> str:
    return token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]


FORGERIES = {
    "empty": lambda token: "",
    "no dot": lambda token: token.replace(".", ""),
    "other key id": lambda token: "00000000" + token[8:],
    "payload changed": lambda token: changed_token(token, 12),
    "proof changed": lambda token: changed_token(token, len(token) - 10),
    "cut": lambda token: token[:-8],
    "padding": lambda token: token + "=",
    "letters outside the alphabet": lambda token: token[:20] + "!" + token[20:],
    "another spelling of the last letter": lambda token: token[:-1] + chr(ord(token[-1]) + 1),
    "huge": lambda token: token + "A" * 10_000,
    "not ASCII": lambda token: token + "é",
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_signature_is_refused(path: Path, forgery: str) -> None:
    """The ring returns None and raises no error."""
    ring = load(path)

    assert ring.verify("session", FORGERIES[forgery](ring.sign("session", b"payload!"))) is None


def test_a_signature_counts_for_one_purpose_only(path: Path) -> None:
    """A cursor must not pass for a session."""
    ring = load(path)

    assert ring.verify("session", ring.sign("cursor", b"payload")) is None


def test_rotation_signs_anew_and_still_verifies_the_old(path: Path) -> None:
    """Old sessions stay valid until more new keys have followed than the ring keeps."""
    old = load(path).sign("session", b"old")
    rotate(path, keep=2)
    new = load(path).sign("session", b"new")

    assert load(path).verify("session", old) == b"old"
    assert old.partition(".")[0] != new.partition(".")[0]

    rotate(path, keep=2)
    rotate(path, keep=2)
    assert load(path).verify("session", old) is None
    assert load(path).verify("session", new) == b"new"


def test_an_unknown_key_id_makes_a_replica_reload_the_ring(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rotation needs no order among replicas: an unknown key id makes them look again."""
    monkeypatch.setattr(module, "REREAD_AFTER_S", 0.0)
    running = load(path)
    rotate(path, keep=2)

    assert running.verify("session", load(path).sign("session", b"new")) == b"new"


def test_a_broken_ring_file_does_not_affect_a_running_process(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process keeps the ring that it loaded, and the log says why."""
    monkeypatch.setattr(module, "REREAD_AFTER_S", 0.0)
    running = load(path)
    token = running.sign("session", b"x")
    path.write_text("{}")

    assert running.verify("session", "ffffffff." + token[9:]) is None
    assert running.verify("session", token) == b"x"
    assert "keyring_not_reloaded" in caplog.text


def test_the_ring_file_is_readable_by_its_owner_only(path: Path) -> None:
    """Made with mode 0600, kept so by a rotation, and refused when others may read it."""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    rotate(path, keep=1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    os.chmod(path, 0o640)
    with pytest.raises(KeyRingError, match="chmod 600"):
        load(path)


@pytest.mark.parametrize(
    ("mode", "accepted"), [(0o400, True), (0o440, True), (0o460, False), (0o444, False)]
)
def test_a_group_may_read_the_ring_if_configured(path: Path, mode: int, accepted: bool) -> None:
    """A Secret volume with `fsGroup` has mode 0440; writing, and all others, stay refused."""
    os.chmod(path, mode)
    settings = f"file:{path}"
    if accepted:
        assert KeyRing.load(settings, group_read=True).lasting
    else:
        with pytest.raises(KeyRingError, match="open to others"):
            KeyRing.load(settings, group_read=True)
    if mode == 0o440:
        with pytest.raises(KeyRingError, match=r"keys\.group_read"):
            KeyRing.load(settings)


def test_a_replaced_secret_volume_is_taken_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The orchestrator swaps a link; the mode stays that of a group."""
    monkeypatch.setattr(module, "REREAD_AFTER_S", 0.0)
    os.chmod(path, 0o440)
    running = KeyRing.load(f"file:{path}", group_read=True)
    newer = path.with_name("newer.json")
    newer.write_bytes(path.read_bytes())
    os.chmod(newer, 0o600)
    rotate(newer, keep=1)
    os.chmod(newer, 0o440)
    newer.replace(path)

    token = KeyRing.load(f"file:{path}", group_read=True).sign("session", b"new")
    assert running.verify("session", token) == b"new"


def test_a_ring_comes_from_the_environment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable has the content of the file; errors do not show it."""
    monkeypatch.setenv("RING", path.read_text())
    ring = KeyRing.load("env:RING")
    assert ring.verify("session", load(path).sign("session", b"x")) == b"x"
    assert ring.lasting
    assert ring.verify("session", "ffffffff.AAAA") is None

    monkeypatch.setenv("RING", path.read_text().replace("{", "[", 1))
    with pytest.raises(KeyRingError, match="RING is not a key ring") as refusal:
        KeyRing.load("env:RING")
    assert load(path).current.text not in str(refusal.value)


def test_a_ring_is_never_overwritten(path: Path) -> None:
    """`new` on an existing ring would end every session."""
    with pytest.raises(KeyRingError, match="exists already"):
        create(path)


def test_a_secret_is_in_no_repr(path: Path) -> None:
    """Reprs end up in logs."""
    assert repr(load(path).current) == f"<Key {load(path).current.id}>"


UNUSABLE_RINGS = [
    ("hunter2", "is a reference"),
    ("env:", "is a reference"),
    ("env:GATEPOST_TEST_NO_RING", "is not set"),
    ("file:", "is a reference"),
    ("file:missing.json", "does not exist"),
    ("file:.", "cannot be read"),
    ("file:garbage.json", "is not a key ring"),
    ("file:empty.json", "holds no key"),
    ("file:short.json", "is damaged"),
]


@pytest.mark.parametrize(("reference", "sentence"), UNUSABLE_RINGS)
def test_an_unusable_ring_is_reported_in_a_sentence(
    reference: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has neither a traceback nor the value."""
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o700)
    for name, text in {
        "garbage.json": "[",
        "empty.json": '{"keys": []}',
        "short.json": '{"keys": [{"id": "a", "secret": "YWJj", "created": 0}]}',
    }.items():
        Path(name).write_text(text)
        os.chmod(name, 0o600)

    with pytest.raises(KeyRingError, match=sentence) as raised:
        KeyRing.load(reference)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("maker", ["signed", "authenticated", "sealed"])
def test_another_thread_may_reload_the_ring_during_a_signature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, maker: str
) -> None:
    """Each new signature names the key that made it."""
    path, original = tmp_path / "keyring.json", module._derived
    create(path)
    ring = KeyRing.load(f"file:{path}")

    def derived(key: module.RingKey, info: str) -> bytes:
        if len(ring.keys) == 1:
            rotate(path, keep=1)
            ring.reread()
        return original(key, info)

    monkeypatch.setattr(module, "_derived", derived)
    if maker == "signed":
        assert ring.verify("x", ring.sign("x", b"1")) == b"1"
    elif maker == "authenticated":
        assert ring.is_authentic("x", b"1", ring.authenticate("x", b"1"))
    else:
        assert ring.open("x", ring.seal("x", b"1")) == b"1"


def test_a_thread_waits_while_another_one_reloads_the_ring(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record with a new key would otherwise look forged during the reading."""
    ring, original = load(path), module._read
    rotate(path, keep=3)
    token = load(path).sign("session", b"payload")
    reading, go_on = threading.Event(), threading.Event()

    def read(*args: Any, **named: Any) -> Any:
        reading.set()
        go_on.wait(10)
        return original(*args, **named)

    monkeypatch.setattr(module, "_read", read)
    monkeypatch.setattr(ring, "_read_at", 0.0)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(ring.verify, "session", token)
        assert reading.wait(10)
        second = threads.submit(ring.verify, "session", token)
        wait([second], timeout=0.05)  # it would have its wrong answer by then
        go_on.set()
        keys = [first.result(), second.result()]

    assert keys == [b"payload", b"payload"]
