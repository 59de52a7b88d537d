"""Strict, bounded parsers for queries, forms and cookies."""

from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl

FIELDS = 200
"""Maximum number of names in one form or query."""
MAX_QUERY = 8_192
FORM = b"application/x-www-form-urlencoded"


class UnreadableForm(Exception):
    """The request cannot be parsed; *status* and *sentence* are for the answer."""

    def __init__(self, sentence: str, *, status: int = 400) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.status = status


def fields(encoded: bytes) -> dict[str, str]:
    """
    Return the names and values of *encoded*, a query or a form's body.

    Line breaks become ``\\n``. UnreadableForm for a duplicate name, because readers differ in which
    of two values they use.
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
        raise UnreadableForm("The form fields cannot be read.") from None
    values: dict[str, str] = {}
    for name, value in pairs:
        if name in values:
            raise UnreadableForm("A form field is given twice.")
        values[name] = value.replace("\r\n", "\n")
    return values


def query_of(encoded: bytes) -> dict[str, str]:
    """
    Return the parameters of a query; UnreadableForm for a query that no link of the dashboard has.
    """
    if len(encoded) > MAX_QUERY:
        raise UnreadableForm("The URL is too long.", status=414)
    return fields(encoded)


def form_of(headers: Mapping[bytes, bytes], body: bytes) -> dict[str, str]:
    """Return the fields of a form's body; UnreadableForm for any other media type."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if body and kind != FORM:
        # Other sites can send text/plain and multipart without a preflight request (Fetch,
        # CORS-safelisted). The dashboard's forms use neither.
        raise UnreadableForm(
            "The form must be sent as application/x-www-form-urlencoded.", status=415
        )
    return fields(body)


def cookie_of(headers: Iterable[tuple[bytes, bytes]], name: str) -> str:
    """Return the cookie of that name; empty if it is missing or has two values (RFC 6265, 8.6)."""
    prefix = name.encode("ascii") + b"="
    cookies = {
        part.strip()[len(prefix) :]
        for key, value in headers
        if key == b"cookie"
        for part in value.split(b";")
        if part.strip().startswith(prefix)
    }
    if len(cookies) != 1:
        return ""
    return cookies.pop().decode("latin-1")
