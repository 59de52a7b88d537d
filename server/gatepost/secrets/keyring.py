"""The key ring: the secrets that sign what this server issues and later accepts."""

import base64
import binascii
import hashlib
import hmac
import logging
import os
import secrets
import threading
import time
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gatepost.permissions import GROUP_AND_OTHERS, GROUP_READ, is_foreign

SECRET_BYTES = 32
MAC_BYTES = 32
# A longer token was not made here; decoding it would be work for an attacker.
MAX_TOKEN_CHARACTERS = 8192
# Encrypted values travel in bodies, and may contain the answers of several rounds.
MAX_SEALED_CHARACTERS = 262_144
NONCE_BYTES = 12
REREAD_AFTER_S = 1.0

_log = logging.getLogger(__name__)


class KeyRingError(Exception):
    """The key ring cannot be used; the message is a sentence for the operator."""


class RingKey(msgspec.Struct, frozen=True):
    """One secret and the id by which its signatures name it."""

    id: str
    secret: bytes

    def __repr__(self) -> str:
        return f"<Key {self.id}>"

    @property
    def text(self) -> str:
        """Return the secret as the file has it; no answer may contain it."""
        return _encode(self.secret)


class _StoredKey(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    secret: str
    created: int


class _StoredRing(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[_StoredKey]


class KeyRing:
    """
    The first key signs, and every key verifies. Rotation adds a new first key.

    A signature names its key and is bound to a purpose, so that a value made for one use is never
    accepted in another. Each purpose has its own subkeys, derived once (HKDF, RFC 5869).
    """

    def __init__(
        self,
        keys: tuple[RingKey, ...],
        *,
        path: Path | None = None,
        lasting: bool = False,
        group_read: bool = False,
    ) -> None:
        self._path = path
        self._group_read = group_read
        self.lasting = lasting or path is not None
        """Whether the ring outlives the process."""
        self._read_at = time.monotonic()
        self._reading = threading.RLock()
        self._hold(keys)

    def _hold(self, keys: tuple[RingKey, ...]) -> None:
        if not keys:
            raise KeyRingError("The key ring holds no key.")
        self.keys = keys
        self.current = keys[0]
        self._by_id = {key.id: key for key in keys}
        self._subkeys: dict[tuple[str, str], bytes] = {}
        self._ciphers: dict[tuple[str, str], AESGCM] = {}

    def find(self, key_id: str) -> RingKey | None:
        """
        Return the key with an id, or None.

        An unknown id may belong to a key that another replica already uses, so the file is looked
        at again, once a second at most, because callers can choose ids.
        """
        ring_key = self._by_id.get(key_id)
        if ring_key is None and self._path:
            with self._reading:  # another thread may be reading the missing key
                if time.monotonic() - self._read_at >= REREAD_AFTER_S:
                    self.reread()
                ring_key = self._by_id.get(key_id)
        return ring_key

    def reread(self) -> None:
        """Take up what the file holds now; a file that cannot be used changes nothing."""
        if self._path is None:
            return
        with self._reading:
            self._read_at = time.monotonic()
            try:
                self._hold(_to_keys(_read(self._path, group_read=self._group_read)))
            except KeyRingError as error:
                _log.warning("keyring_not_reloaded", extra={"reason": str(error)})

    def sign(self, purpose: str, payload: bytes) -> str:
        """Return the payload with its MAC, in characters that fit a header (base64url, `.`)."""
        key = self.current  # another thread may set a new one meanwhile
        return f"{key.id}.{_encode(payload + self._mac(key, purpose, payload))}"

    def verify(self, purpose: str, token: str) -> bytes | None:
        """Return the payload that `sign` got for the same purpose, or None."""
        key, data = self._read(token, MAX_TOKEN_CHARACTERS)
        if key is None or len(data) < MAC_BYTES:
            return None
        payload, mac = data[:-MAC_BYTES], data[-MAC_BYTES:]
        return payload if hmac.compare_digest(mac, self._mac(key, purpose, payload)) else None

    def authenticate(self, purpose: str, payload: bytes) -> str:
        """Return the MAC of a payload, for a reader that has the payload; letters as in `sign`."""
        key = self.current
        return f"{key.id}.{_encode(self._mac(key, purpose, payload))}"

    def is_authentic(self, purpose: str, payload: bytes, token: str) -> bool:
        """Return whether *token* is what `authenticate` returned for this purpose and payload."""
        key, mac = self._read(token, MAX_TOKEN_CHARACTERS)
        return key is not None and hmac.compare_digest(mac, self._mac(key, purpose, payload))

    def _read(self, token: str, max_chars: int) -> tuple[RingKey | None, bytes]:
        """Return the key that a token names and its bytes; no key if it cannot be one of ours."""
        if len(token) > max_chars:
            return None, b""
        key_id, _, encoded = token.partition(".")
        data = _decode(encoded)
        return (None, b"") if data is None else (self.find(key_id), data)

    def seal(self, purpose: str, payload: bytes, *, context: bytes = b"") -> str:
        """
        Encrypt a payload (AES-256-GCM).

        *context* is not inside: `open` must be given the same again. Letters as in `sign`.
        """
        key, nonce = self.current, secrets.token_bytes(NONCE_BYTES)
        sealed = self._cipher(key, purpose).encrypt(nonce, payload, context)
        return f"{key.id}.{_encode(nonce + sealed)}"

    def open(self, purpose: str, token: str, *, context: bytes = b"") -> bytes | None:
        """Return the payload that `seal` got for the same purpose and context, or None."""
        key, data = self._read(token, MAX_SEALED_CHARACTERS)
        if key is None or len(data) < NONCE_BYTES:
            return None
        try:
            return self._cipher(key, purpose).decrypt(
                data[:NONCE_BYTES], data[NONCE_BYTES:], context
            )
        except InvalidTag:
            return None

    def derived(self, key: RingKey, purpose: str) -> bytes:
        """Return 32 bytes from which a key of another kind is derived, for this purpose alone."""
        return _derived(key, f"gatepost derived {purpose}")

    def _cipher(self, key: RingKey, purpose: str) -> AESGCM:
        cipher = self._ciphers.get((key.id, purpose))
        if cipher is None:
            cipher = AESGCM(_derived(key, f"gatepost seal {purpose}"))
            self._ciphers[key.id, purpose] = cipher
        return cipher

    def _mac(self, key: RingKey, purpose: str, payload: bytes) -> bytes:
        subkey = self._subkeys.get((key.id, purpose)) or self._subkey(key, purpose)
        return hmac.digest(subkey, payload, hashlib.sha256)

    def _subkey(self, key: RingKey, purpose: str) -> bytes:
        """Derive and keep the key for a purpose."""
        subkey = self._subkeys[key.id, purpose] = _derived(key, f"gatepost {purpose}")
        return subkey

    @classmethod
    def ephemeral(cls) -> "KeyRing":
        """Return a ring in memory; its signatures are not valid after a restart."""
        return cls((_new_key(),))

    @classmethod
    def load(cls, reference: str, *, group_read: bool = False) -> "KeyRing":
        """
        Load the ring of a `file:PATH` or `env:NAME` reference; raises KeyRingError.

        With *group_read*, the group of the file may read it. A ring from the environment stays as
        it is until the process ends.
        """
        kind, _, variable = reference.partition(":")
        if kind == "env" and variable:
            return cls(_to_keys(_of_environment(variable)), lasting=True)
        path = path_of(reference)
        ring = _read(path, group_read=group_read)
        return cls(_to_keys(ring), path=path, group_read=group_read)


def _derived(key: RingKey, info: str) -> bytes:
    return HKDF(SHA256(), SECRET_BYTES, None, info.encode()).derive(key.secret)


def path_of(reference: str) -> Path:
    """Return the path in a key ring's reference; raises KeyRingError."""
    kind, _, path = reference.partition(":")
    if kind != "file" or not path:
        raise KeyRingError(
            'A key ring is a reference, as in "file:keyring.json" or "env:KEY_RING".'
        )
    return Path(path)


def create(path: Path) -> str:
    """Write a new ring with one key, for the owner's eyes only; answers the key's id."""
    key = _new_key()
    ring = _StoredRing([_stored(key)])
    try:
        _write_new(path, ring)
    except FileExistsError:
        raise KeyRingError(
            f"{path} exists already; `gatepost keyring rotate` adds a key to it."
        ) from None
    except OSError as error:
        raise KeyRingError(f"{path} cannot be written: {error.strerror}.") from None
    return key.id


def rotate(path: Path, *, keep: int) -> str:
    """Put a new key in front and keep at most *keep* older ones; answers the new key's id."""
    ring = _read(path)
    # If a key were damaged, no server could load the rotated ring.
    _to_keys(ring)
    key = _new_key()
    ring.keys = [_stored(key), *ring.keys][: keep + 1]
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        # Readers see the old ring or the new one, never half of it.
        _write_new(fresh, ring)
        fresh.replace(path)
    except OSError as error:
        raise KeyRingError(f"{path} cannot be written: {error.strerror}.") from None
    return key.id


def key_ids(path: Path) -> tuple[str, ...]:
    """Return the ids of a ring's keys, the newest first; raises KeyRingError."""
    return tuple(key.id for key in _read(path).keys)


def _of_environment(name: str) -> _StoredRing:
    text = os.environ.get(name)
    if not text:
        raise KeyRingError(f"The environment variable {name} is not set.")
    try:
        return msgspec.json.decode(text, type=_StoredRing)
    except msgspec.DecodeError:
        raise KeyRingError(
            f"The environment variable {name} is not a key ring; it must hold the content of the "
            "file that `gatepost keyring new` makes."
        ) from None


def _read(path: Path, *, group_read: bool = False) -> _StoredRing:
    try:
        # Any other reader of the file can sign sessions for every caller.
        status = path.stat()
        data = path.read_bytes()
    except FileNotFoundError:
        raise KeyRingError(f"{path} does not exist; `gatepost keyring new` makes it.") from None
    except OSError as error:
        raise KeyRingError(f"{path} cannot be read: {error.strerror}.") from None
    if is_foreign(status) and status.st_uid != 0:
        raise KeyRingError(
            f"{path} belongs to another user (uid {status.st_uid}), who can read and change it."
        )
    if status.st_mode & (GROUP_AND_OTHERS & ~GROUP_READ if group_read else GROUP_AND_OTHERS):
        hint = (
            " A Secret volume with fsGroup needs keys.group_read = true and mode 0440."
            if not group_read and status.st_mode & GROUP_AND_OTHERS == GROUP_READ
            else ""
        )
        raise KeyRingError(
            f"{path} is open to others than its owner; `chmod 600 {path}` ends that.{hint}"
        )
    try:
        return msgspec.json.decode(data, type=_StoredRing)
    except msgspec.DecodeError:
        raise KeyRingError(f"{path} is not a key ring.") from None


def _to_keys(ring: _StoredRing) -> tuple[RingKey, ...]:
    keys = []
    for stored in ring.keys:
        secret = _decode(stored.secret)
        if secret is None or len(secret) < SECRET_BYTES or "." in stored.id:
            raise KeyRingError("A key of the ring is damaged; make a new ring.")
        keys.append(RingKey(stored.id, secret))
    return tuple(keys)


def _new_key() -> RingKey:
    return RingKey(secrets.token_hex(4), secrets.token_bytes(SECRET_BYTES))


def _stored(key: RingKey) -> _StoredKey:
    return _StoredKey(key.id, _encode(key.secret), int(time.time()))


def _write_new(path: Path, ring: _StoredRing) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(ring)) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(text: str) -> bytes | None:
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return None
    # The decoder skips characters outside its alphabet, but a proof must have only one spelling.
    return data if _encode(data) == text else None
