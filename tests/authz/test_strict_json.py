"""JSON as attackers may send it: one reading or none."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost_authz.strict_json import StrictJsonError, loads_object
from tests.support.measuring import each

LIMIT = 100_000


def parsed(data: bytes, max_depth: int = 8) -> dict[str, object]:
    return loads_object(data, max_depth=max_depth, max_bytes=LIMIT)


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


REFUSED_TEXTS = {
    "empty": b"",
    "blank": b"  \n",
    "array": b"[1]",
    "string": b'"a"',
    "null": b"null",
    "two-values": b'{"a":1}{"b":2}',
    "trailing-text": b'{"a":1} x',
    "duplicate": b'{"a":1,"a":2}',
    "duplicate-escaped": b'{"sub":"a","\\u0073ub":"b"}',
    "duplicate-below": b'{"a":{"b":1,"b":1}}',
    "duplicate-in-list": b'{"a":[{"b":1,"b":1}]}',
    "nan": b'{"a":NaN}',
    "infinity": b'{"a":Infinity}',
    "negative-infinity": b'{"a":-Infinity}',
    "overflow": b'{"a":1e400}',
    "negative-overflow": b'{"a":-1e400}',
    "long-integer": b'{"a":' + b"1" * 33 + b"}",
    "long-negative-integer": b'{"a":-' + b"1" * 32 + b"}",
    "long-number-with-fraction": b'{"a":1234567890123456.1234567890123456}',
    "very-long-integer": b'{"a":' + b"1" * 4_301 + b"}",
    "long-fraction": b'{"a":0.' + b"1" * 33 + b"}",
    "full-width-digits": '{"a":\uff11}'.encode(),
    "leading-zero": b'{"a":01}',
    "plus": b'{"a":+1}',
    "underscore": b'{"a":1_0}',
    "utf-8-bom": b'\xef\xbb\xbf{"a":1}',
    "utf-16": '{"a":1}'.encode("utf-16"),
    "utf-16-le": '{"a":1}'.encode("utf-16-le"),
    "invalid-utf-8": b'{"a":"\xff"}',
    "overlong-utf-8": b'{"a":"\xc0\x80"}',
    "encoded-surrogate": b'{"a":"\xed\xa0\x80"}',
    "lone-surrogate": b'{"a":"\\ud800"}',
    "lone-surrogate-in-name": b'{"\\uDC00":1}',
    "reversed-surrogates": b'{"a":"\\udc00\\ud800"}',
    "raw-newline": b'{"a":"\n"}',
    "raw-nul": b'{"a":"\0"}',
    "comment": b'{"a":1/**/}',
    "trailing-comma": b'{"a":1,}',
    "single-quotes": b"{'a':1}",
    "unterminated": b'{"a":"b',
    "unterminated-escape": b'{"a":"b\\',
    "nine-deep": nested(9),
    "deep-list": b'{"a":' + b"[" * 1_500 + b"]" * 1_500 + b"}",
    "very-deep": b'{"a":' + b"[" * 40_000 + b"]" * 40_000 + b"}",
    "deep-unclosed": b'{"a":' + b"[" * 90_000,
    "too-large": b'{"a":"' + b"x" * LIMIT + b'"}',
}


@pytest.mark.requirement("A17", "C02", "C03", "C20", "C28", "H11", "H12", "H13", "N05")
@each("data", REFUSED_TEXTS.values(), ids=REFUSED_TEXTS)
def test_ambiguous_or_invalid_json_is_refused(data: bytes) -> None:
    """JSON that parsers read differently, or that takes long to read, is refused too."""
    with pytest.raises(StrictJsonError):
        parsed(data)


ACCEPTED_TEXTS: dict[str, tuple[bytes, Any]] = {
    "empty": (b"{}", {}),
    "white-space": (b' \r\n\t{ "a" : 1 }\n', {"a": 1}),
    "numbers": (b'{"a":-0,"b":1.5,"c":1e3}', {"a": 0, "b": 1.5, "c": 1000.0}),
    "brackets-in-strings": (b'{"a":"[[[[[[[[[[{{{{{{{{"}', {"a": "[" * 10 + "{" * 8}),
    "escaped-quote": (b'{"a":"\\"[[[[[[[[[[","b":[]}', {"a": '"[[[[[[[[[[', "b": []}),
    "many-side-by-side": (b'{"a":[[],[],[],[],[],[],[],[],[],[]]}', {"a": [[]] * 10}),
    "eight-deep": (nested(8), json.loads(nested(8))),
    "pair-of-surrogates": (b'{"a":"\\ud83d\\ude00"}', {"a": "\U0001f600"}),
    "surrogate-spelt-out": (b'{"a":"\\\\ud800"}', {"a": "\\ud800"}),
    "utf-8": ('{"\u00e4":"\u4e2d"}'.encode(), {"\u00e4": "\u4e2d"}),
}


@each(("data", "value"), ACCEPTED_TEXTS.values(), ids=ACCEPTED_TEXTS)
def test_ordinary_json_is_read(data: bytes, value: object) -> None:
    """Strict JSON includes everything that RFC 8259 calls interoperable."""
    assert parsed(data) == value


@pytest.mark.requirement("H13", "C28")
def test_an_unterminated_string_with_many_quotes_is_refused_quickly() -> None:
    """The depth check reads an unterminated string only once."""
    with pytest.raises(StrictJsonError):
        parsed(b'{"a":[[[[[[[[[' + b'"\\' * 40_000)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=30,
)


@given(st.dictionaries(st.text(), json_values))
def test_encoded_objects_are_decoded_to_the_same_value(value: dict[str, Any]) -> None:
    """This holds for every kind of escape."""
    for ascii_only in (True, False):
        data = json.dumps(value, ensure_ascii=ascii_only).encode()
        assert loads_object(data, max_depth=100, max_bytes=10**7) == value


def deepest(value: object) -> int:
    """Return how deep a value nests, computed the slow way."""
    if isinstance(value, dict):
        return 1 + max(map(deepest, value.values()), default=0)
    return 1 + max(map(deepest, value), default=0) if isinstance(value, list) else 0


@given(json_values, st.integers(1, 8))
def test_the_depth_limit_is_exact(value: Any, limit: int) -> None:
    """Brackets in strings do not count; brackets around values do."""
    data = json.dumps({"[": value}).encode()
    if deepest({"[": value}) <= limit:
        assert parsed(data, limit) == {"[": value}
    else:
        with pytest.raises(StrictJsonError):
            parsed(data, limit)


def pedantic(data: bytes) -> object:
    """Parse with the ordinary parser and each objection spelt out, as an independent check."""

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        assert len({name for name, _ in items}) == len(items)
        return dict(items)

    def number(digits: str) -> int | float:
        assert len(digits) <= 32
        value = float(digits)
        assert math.isfinite(value)
        return int(digits) if digits.lstrip("-").isdigit() else value

    value = json.loads(
        data.decode("utf-8"), object_pairs_hook=pairs, parse_int=number, parse_float=number
    )
    assert isinstance(value, dict)
    assert deepest(value) <= 8
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return value


JSON_PIECES = (
    '{ } [ ] : , "a" "b" " \\ \\u0061 \\ud800 1 - e9 1e400 NaN null true . \u00e4'.encode().split()
)
fragments = st.sampled_from([*JSON_PIECES, b" ", b"\xff"])


@given(st.lists(fragments, max_size=14).map(b"".join) | st.binary(max_size=40))
def test_arbitrary_bytes_give_the_reference_value_or_a_strict_json_error(data: bytes) -> None:
    """A slow reference implementation agrees, and no other error is raised."""
    try:
        expected: object = pedantic(b'{"x":' + data + b"}")
    except (AssertionError, ValueError):
        expected = None
    try:
        assert parsed(b'{"x":' + data + b"}") == expected
    except StrictJsonError:
        assert expected is None
