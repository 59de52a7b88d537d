"""Name the tools and prompts of upstreams: `mcp_{server}__{tool}`, for all clients and forever."""

import hashlib
import re

import msgspec

from gatepost.tools.offers.tenant_offers import UPSTREAM_PREFIX as PREFIX
from gatepost.tools.offers.tenant_offers import UPSTREAM_SEPARATOR as SEPARATOR

NAME_CHARACTERS = 64
"""Maximum number of characters of a name, because some clients accept no more."""
HASH_CHARACTERS = 8
MAX_SERVER = 24
"""Maximum number of characters of a server's name in a name that ends in a hash."""

_SERVER = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)*", re.ASCII)
_TOOL = re.compile(r"[a-z0-9_]+", re.ASCII)
_HASHED = re.compile(r"_[0-9a-f]{8}\Z", re.ASCII)
_OTHERS = re.compile(r"[^a-z0-9]+", re.ASCII)
_SCOPE = re.compile(r"[!#-\[\]-~]+", re.ASCII)  # scope-token of RFC 6749, section 3.3


def offered_name(server: str, tool: str) -> str:
    """
    Return the name of a server's tool or prompt behind this gate.

    It depends on these two names alone, so it stays the same whatever else is registered. Names
    that fit are kept: the first `__` ends the server's name. Any other name, and each that looks
    like one with a hash, ends in eight characters of the SHA-256 of both names.
    """
    full_name = f"{PREFIX}{server}{SEPARATOR}{tool}"
    fits = _SERVER.fullmatch(server) and _TOOL.fullmatch(tool) and len(full_name) <= NAME_CHARACTERS
    if fits and not _HASHED.search(tool):
        return full_name
    head = f"{PREFIX}{_name_part(server)[:MAX_SERVER].rstrip('_')}{SEPARATOR}"
    tool_characters = NAME_CHARACTERS - len(head) - 1 - HASH_CHARACTERS
    return f"{head}{_name_part(tool)[:tool_characters].rstrip('_')}_{_digest(server, tool)}"


def tool_prefix(server: str) -> str:
    """Return what the names of a server's tools begin with."""
    return offered_name(server, "x").rpartition(SEPARATOR)[0] + SEPARATOR


def server_scope(server: str) -> str:
    """Return the scope that a server's tools need if no pattern covers them: `mcp:{server}`."""
    if _SCOPE.fullmatch(server):
        return f"mcp:{server}"
    return f"mcp:{_name_part(server)[:MAX_SERVER].rstrip('_')}_{_digest(server)}"


def _name_part(name: str) -> str:
    return _OTHERS.sub("_", name.lower()).strip("_") or "x"


def _digest(*names: str) -> str:
    # As JSON, so that no choice of names makes two pairs the same.
    text = msgspec.json.encode([name.encode("utf-8", "surrogatepass").hex() for name in names])
    return hashlib.sha256(text).hexdigest()[:HASH_CHARACTERS]
