"""Read scopes from claims, and resolve implied scopes."""

import functools
import re
from collections.abc import Callable, Iterable, Mapping

from gatepost_authz.errors import InvalidToken

MAX_SCOPES = 256
"""The maximum number of scopes; each costs memory in every cached token."""
MAX_LENGTH = 256
REMEMBERED = 256

# scope-token of RFC 6749 section 3.3, separated by spaces. Some issuers write two spaces, or an
# empty string if no scope was granted; the meaning is the same.
SCOPES = re.compile(r"[\x20\x21\x23-\x5B\x5D-\x7E]*", re.ASCII)


# Callers of one application have the same few texts; sharing the sets also saves memory.
@functools.lru_cache(maxsize=REMEMBERED)
def parse(value: str) -> frozenset[str]:
    """
    Parse a space-delimited ``scope`` claim (RFC 8693 section 4.2).

    InvalidToken: a character outside the grammar of RFC 6749 section 3.3, more than 256 scopes, or
    one longer than 256 characters.
    """
    if SCOPES.fullmatch(value) is None:
        raise InvalidToken("bad_scope")
    words = value.split()
    if len(words) > MAX_SCOPES:
        raise InvalidToken("too_many_scopes")
    if len(value) > MAX_LENGTH and max(map(len, words), default=0) > MAX_LENGTH:
        raise InvalidToken("bad_scope")
    return frozenset(words)


def collect(values: Iterable[object]) -> frozenset[str]:
    """Return the scopes of a claim that is a list (Okta ``scp``, Entra ``roles``)."""
    scopes = set()
    for value in values:
        if not isinstance(value, str) or len(parse(value)) != 1 or " " in value:
            # An entry with a space would grant two scopes although its issuer meant one.
            raise InvalidToken("bad_scope")
        scopes.add(value)
        if len(scopes) > MAX_SCOPES:
            raise InvalidToken("too_many_scopes")
    return frozenset(scopes)


class Implications:
    """The scopes that a granted scope implies, directly or indirectly."""

    def __init__(self, implied: Mapping[str, Iterable[str]]) -> None:
        direct = {scope: frozenset(implied_scopes) for scope, implied_scopes in implied.items()}
        self.implied = {scope: closure(scope, direct) for scope in direct}
        self.expand: Callable[[frozenset[str]], frozenset[str]]
        """Returns a set of scopes with all implied scopes; the last sets are cached."""
        self.expand = functools.lru_cache(maxsize=REMEMBERED)(self._expand)

    def _expand(self, scopes: frozenset[str]) -> frozenset[str]:
        granting = self.implied.keys() & scopes
        if not granting:
            return scopes
        return scopes.union(*(self.implied[scope] for scope in granting))


def closure(scope: str, direct: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Return all scopes that *scope* implies, including itself; cycles are allowed."""
    reached: set[str] = set()
    waiting = [scope]
    while waiting:
        current = waiting.pop()
        if current not in reached:
            reached.add(current)
            waiting.extend(direct.get(current, ()))
    return frozenset(reached)
