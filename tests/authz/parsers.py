"""How four clients read a challenge: behaviour only, written anew from what their sources do."""

import re
from collections.abc import Callable

import httpx2
from mcp.client.auth.utils import extract_field_from_www_auth

Read = Callable[[str, str], str | None]


def python_sdk(header: str, name: str) -> str | None:
    """The official Python client: a bare search for `name=`, wherever it stands (itself)."""
    return extract_field_from_www_auth(
        httpx2.Response(401, headers={"WWW-Authenticate": header}), name
    )


def typescript_sdk(header: str, name: str) -> str | None:
    """The official TypeScript client: nothing unless the first word is Bearer; then a search."""
    words = header.split(" ")
    if len(words) < 2 or words[0].lower() != "bearer" or not words[1]:
        return None
    found = re.search(rf'{name}=(?:"([^"]+)"|([^\s,]+))', header)
    return (found[1] or found[2]) if found else None


def vs_code(header: str, name: str) -> str | None:
    """VS Code: splits at commas outside quotes, every quote toggling; the scheme is `Bearer`."""
    pieces, quoted = [""], False
    for character in header:
        quoted ^= character == '"'
        if character == "," and not quoted:
            pieces.append("")
        else:
            pieces[-1] += character
    scheme, parameters = "", {}
    for piece in filter(None, map(str.strip, pieces)):
        before, space, after = piece.partition(" ")
        if "=" not in piece:
            scheme, parameters = piece, {}
            continue
        if space and "=" not in before:
            scheme, parameters, piece = before, {}, after
        key, _, value = piece.partition("=")
        parameters[key.strip()] = value.strip().strip('"')
    return parameters.get(name) if scheme == "Bearer" else None


def inspector(header: str, name: str) -> str | None:
    """The Inspector: parameters of the whole header, the last of a name wins."""
    pairs = re.findall(r'([A-Za-z0-9_-]+)\s*=\s*(?:"([^"]*)"|([^\s,]+))', header)
    return {key: quoted or bare for key, quoted, bare in pairs}.get(name)


PARSERS: dict[str, Read] = {
    "python_sdk": python_sdk,
    "typescript_sdk": typescript_sdk,
    "vs_code": vs_code,
    "inspector": inspector,
}
