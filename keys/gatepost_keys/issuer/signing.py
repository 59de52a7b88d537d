"""The issuer's signing keys: made at the start, rotated on demand, never written down."""

from collections.abc import Collection
from typing import Any

from joserfc.jwk import Key

from gatepost_keys.generate import GenerationRefused, new_key
from gatepost_keys.public_keys import public_set


class SigningKeys:
    """
    One key signs; those before it stay published until they are removed.

    With *with_next* there is one more key, which is published before it signs.
    """

    def __init__(self, algorithm: str, *, with_next: bool) -> None:
        self.algorithm = algorithm
        self._keys = [new_key(algorithm) for _ in range(2 if with_next else 1)]
        self._signing = -2 if with_next else -1
        self._since: float | None = None

    @property
    def current(self) -> Key:
        """Return the key that signs."""
        return self._keys[self._signing]

    @property
    def newest(self) -> Key:
        """Return the newest key, which signs already unless there is one ahead."""
        return self._keys[-1]

    @property
    def ids(self) -> tuple[str, ...]:
        """Return the published key ids, oldest first."""
        return tuple(str(key.kid) for key in self._keys)

    def rotate(self, *, remove_old: bool = False) -> str:
        """Sign with the next key from now on, and say its id; the old ones go if *remove_old*."""
        fresh = new_key(self.algorithm)
        retained = self._keys[self._signing :][1:] if remove_old else self._keys[-7:]
        self._keys = [*retained, fresh]
        return str(self.current.kid)

    def rotate_when_due(self, now: float, every_s: int) -> None:
        """Rotate if the last rotation, or the first call, is *every_s* seconds ago (0: never)."""
        if self._since is None:
            self._since = now
        if every_s and now - self._since >= every_s:
            self._since = now
            self.rotate()

    def remove(self, kid: str) -> None:
        """
        Stop publishing *kid*, so that its signatures are refused; GenerationRefused for the signing
        key.
        """
        if kid not in self.ids[: self._signing]:
            raise GenerationRefused(f"{kid} is not an old key of this issuer")
        self._keys = [key for key in self._keys if key.kid != kid]

    def document(self, omitted: Collection[str] = ()) -> dict[str, list[dict[str, Any]]]:
        """Return the public set, the newest key first, without the members in *omitted*."""
        published = public_set(reversed(self._keys))["keys"]
        return {"keys": [{k: v for k, v in key.items() if k not in omitted} for key in published]}
