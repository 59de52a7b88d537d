"""The issuer's signing keys: made at the start, rotated on demand, never written down."""

from typing import Any

from joserfc.jwk import Key

from gatepost_keys.generate import GenerationRefused, new_key
from gatepost_keys.jwks import public_set


class SigningKeys:
    """One key signs; those before it stay published until they are removed."""

    def __init__(self, algorithm: str) -> None:
        self.algorithm = algorithm
        self._keys = [new_key(algorithm)]

    @property
    def current(self) -> Key:
        """Return the key that signs."""
        return self._keys[-1]

    @property
    def ids(self) -> tuple[str, ...]:
        """Return the published key ids, oldest first; the last one signs."""
        return tuple(str(key.kid) for key in self._keys)

    def rotate(self, *, remove_old: bool = False) -> str:
        """Sign with a new key from now on, and say its id; the old ones go if *remove_old*."""
        fresh = new_key(self.algorithm)
        self._keys = [fresh] if remove_old else [*self._keys[-7:], fresh]
        return str(fresh.kid)

    def remove(self, kid: str) -> None:
        """Publish *kid* no longer: what it signed is to be refused. Refused for the signing key."""
        if kid not in self.ids[:-1]:
            raise GenerationRefused(f"{kid} is not an old key of this issuer")
        self._keys = [key for key in self._keys if key.kid != kid]

    def document(self) -> dict[str, list[dict[str, Any]]]:
        """Return the public set, the signing key first."""
        return public_set(reversed(self._keys))
