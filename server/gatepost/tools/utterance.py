"""Parts of what calls say, looked at and cleaned one by one."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from gatepost.redaction import document
from gatepost.redaction.automaton import Redactor
from gatepost.tools.api import Failure, Outcome
from gatepost.tools.client import InputRequest
from gatepost.tools.fit import UNENCODABLE

LONG_BYTES = 131_072
"""From where on an answer is searched in a thread: a few milliseconds, or a tenth of a second for
one that was made to take long."""

_STRINGS = re.compile(rb'"([^"]*)"(\s*:)?').findall
"""The strings of a document that has no escapes, and which of them are names."""

_encode = msgspec.json.encode
_decode = msgspec.json.decode
_replace = msgspec.structs.replace


def is_harmless(outcome: Outcome, redactor: Redactor, most: int = LONG_BYTES) -> bool:
    """
    Decide the usual case, one text and perhaps the same as JSON, without encoding it again.

    True is sure: no secrets, and at most so many bytes of each. False says nothing.
    """
    content, value = outcome.content, outcome.structured
    if len(content) != 1 or outcome.failure is not None:
        return False
    block = content[0]
    text = block.get("text")
    if len(block) != 2 or block.get("type") != "text" or not isinstance(text, str):
        return False
    try:
        plain = text.encode()
    except UnicodeEncodeError:
        return False  # half a surrogate pair, as in odd file names
    if len(plain) > most or not redactor.clear(plain):
        return False
    return value is UNSET or _is_harmless_value(value, plain, redactor, most)


def _is_harmless_value(value: Any, plain: bytes, redactor: Redactor, most: int) -> bool:
    """The same of the structured value, beside a harmless text."""
    if not isinstance(value, Raw):
        return False
    encoded = bytes(value)
    if b"\\" in encoded or len(encoded) > most:
        return False
    if encoded != plain and not redactor.clear(encoded):
        return False
    # What is split over several strings, as `document` finds it.
    return redactor.clear(b"".join([text for text, colon in _STRINGS(encoded) if not colon]))


def failure_without(failure: Failure, redactor: Redactor) -> Failure:
    message = redactor.clean(str(failure.message))
    field = None if failure.field is None else redactor.clean(str(failure.field))
    if message == failure.message and field == failure.field:
        return failure
    return _replace(failure, message=message, field=field)


def question_without(request: InputRequest, redactor: Redactor) -> InputRequest:
    try:
        params = document.cleaned(_encode(request.params), redactor)
    except UNENCODABLE:
        return request  # it has no JSON, which whoever sends it finds out
    return request if params is None else InputRequest(request.method, _decode(params))


def names_in(schema: Any) -> Iterator[bytes]:
    """What members are called by a schema."""
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            yield from (name.encode(errors="surrogatepass") for name in properties)
        schema = [*schema.values()]
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        for inner in schema:
            yield from names_in(inner)
