"""Queries, forms and cookies, read within limits and without guessing."""

from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl

FIELDS = 200
"""Names in one form or query."""
MOST_QUERY = 8_192
FORM = b"application/x-www-form-urlencoded"


class Unreadable(Exception):
    """Something that cannot be read as what it says it is; *status* and a sentence."""

    def __init__(self, sentence: str, *, status: int = 400) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.status = status


def fields(encoded: bytes) -> dict[str, str]:
    """
    The names and values that *encoded* (a query, a form's body) holds.

    Line breaks are ``\\n``, whatever browsers make of them. Raises Unreadable for a name that comes
    twice: which of two counts differs from one reader to the next.
    """
    if not encoded:
        return {}
    try:
        pairs = parse_qsl(
            encoded.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=FIELDS,
        )
    except ValueError:
        raise Unreadable("The fields of this request cannot be read.") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise Unreadable("A field of this request is given twice.")
        found[name] = value.replace("\r\n", "\n")
    return found


def query_of(encoded: bytes) -> dict[str, str]:
    """The parameters of a query; Unreadable for one that no link of ours has."""
    if len(encoded) > MOST_QUERY:
        raise Unreadable("This address is too long.", status=414)
    return fields(encoded)


def form_of(headers: Mapping[bytes, bytes], body: bytes) -> dict[str, str]:
    """The fields of a form's body; Unreadable for any other media type."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if body and kind != FORM:
        # What a foreign page can send without asking first (Fetch, CORS-safelisted) includes
        # text/plain and multipart; none of our forms is either.
        raise Unreadable("Forms of this server are form-encoded.", status=415)
    return fields(body)


def cookie_of(headers: Iterable[tuple[bytes, bytes]], name: str) -> str:
    """The cookie of that name; empty where there is none, or two that differ (RFC 6265, 8.6)."""
    prefix = name.encode("ascii") + b"="
    found = {
        part.strip()[len(prefix) :]
        for key, value in headers
        if key == b"cookie"
        for part in value.split(b";")
        if part.strip().startswith(prefix)
    }
    if len(found) != 1:
        return ""
    return found.pop().decode("latin-1")
