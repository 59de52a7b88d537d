"""Every encoding that docs/redaction.md names is found, and a form is what it says."""

import base64
import binascii
import html
import json
import re
import string
from collections.abc import Callable, Iterator
from urllib.parse import quote, quote_plus, unquote, unquote_plus

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gatepost.redaction.redactor import Redactor
from gatepost.redaction.stream import RedactedStream
from tests.support.measuring import each

SECRETS = {
    "API_KEY": 's3cr3t-Kéy/with "quotes\\ +%41&x',
    "PASSWORD": "correct-horse-battery-staple",
    "PIN": "86427531",
    "CERT": "-----BEGIN STUFF-----\nQUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo=\nMTIzNDU2Nzg5MDEyMzQ1\n",
    "SHORT": "ab",
}

REDACTOR = Redactor(SECRETS)
Encode = Callable[[str], str]
Decode = Callable[[str], Iterator[str]]


class EncodedForm(msgspec.Struct, frozen=True):
    """One row: *encode* writes a value, *decode* reads whatever could be one out of a text."""

    encode: Encode
    decode: Decode


def base64_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def base64_texts(text: str) -> Iterator[bytes]:
    """Yield each base64 text in a text, from each of the four offsets of its groups."""
    for run in re.findall(r"[A-Za-z0-9+/_-]{4,}", text):
        for skip in range(4):
            digits = run[skip:].replace("-", "+").replace("_", "/")
            digits = digits[: len(digits) - (len(digits) % 4 == 1)]
            try:
                yield base64.b64decode(digits + "=" * (-len(digits) % 4))
            except binascii.Error:
                continue


def from_base64(text: str) -> Iterator[str]:
    for data in base64_texts(text):
        yield data.decode(errors="replace")
        yield data.decode("utf-16-le", errors="replace")
        yield data[1:].decode("utf-16-le", errors="replace")


def from_wrapped(text: str) -> Iterator[str]:
    yield from from_base64(re.sub(r"\s+", "", text))


def from_base64_twice(text: str) -> Iterator[str]:
    for once in from_base64(text):
        yield from from_base64(once)


def from_json_in_base64(text: str) -> Iterator[str]:
    for once in from_base64(text):
        yield from unescape(once)


def from_hex(text: str) -> Iterator[str]:
    for run in re.findall(r"[0-9A-Fa-f][0-9A-Fa-f: ]{7,}", text):
        digits = re.sub(r"[: ]", "", run)
        for skip in range(2):
            whole = digits[skip : skip + (len(digits) - skip) // 2 * 2]
            yield bytes.fromhex(whole).decode(errors="replace")


def unescape(text: str) -> Iterator[str]:
    """Yield the text with the escapes of JSON strings decoded, once to three times."""
    for _ in range(3):
        text = re.sub(
            r"\\(?:u([0-9A-Fa-f]{4})|(.))",
            lambda m: chr(int(m[1], 16)) if m[1] else {"n": "\n", "t": "\t"}.get(m[2], m[2]),
            text,
        )
        text = text.encode("utf-16", errors="surrogatepass").decode("utf-16", errors="replace")
        yield text


def decode_once(decode: Encode) -> Decode:
    def decoded(text: str) -> Iterator[str]:
        yield decode(text)

    return decoded


def decode_twice(decode: Encode) -> Decode:
    return decode_once(lambda text: decode(decode(text)))


def encode_bytes(pattern: str) -> Encode:
    return lambda value: "".join(pattern % byte for byte in value.encode())


def utf16_units(value: str) -> Iterator[int]:
    wide = value.encode("utf-16-be")
    return (int.from_bytes(wide[at : at + 2], "big") for at in range(0, len(wide), 2))


def mixed_hex(value: str) -> str:
    digits = value.encode().hex()
    return "".join(d.upper() if at % 3 else d for at, d in enumerate(digits))


def wrapped_lines(text: str, columns: int = 19) -> str:
    return "\r\n    ".join(text[at : at + columns] for at in range(0, len(text), columns))


def inner(value: str) -> str:
    return json.dumps(value)[1:-1]


def raw_inner(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)[1:-1]


FORMS: dict[str, EncodedForm] = {
    "as it is": EncodedForm(str, decode_once(str)),
    "base64": EncodedForm(lambda v: base64_text(v.encode()), from_base64),
    "base64, one byte before": EncodedForm(
        lambda v: base64_text(b"u" + v.encode() + b"\n"), from_base64
    ),
    "base64, two bytes before": EncodedForm(
        lambda v: base64_text(b"a:" + v.encode() + b"rest"), from_base64
    ),
    "base64 for URLs": EncodedForm(
        lambda v: base64.urlsafe_b64encode(v.encode()).decode().rstrip("="), from_base64
    ),
    "base64, wrapped": EncodedForm(
        lambda v: wrapped_lines(base64_text(b"{%b}" % v.encode())), from_wrapped
    ),
    "base64, percent-encoded": EncodedForm(
        lambda v: quote(base64_text(v.encode()), safe=""), lambda t: from_base64(unquote(t))
    ),
    "base64 of JSON": EncodedForm(
        lambda v: base64_text(json.dumps({"key": v}).encode()), from_json_in_base64
    ),
    "base64 of UTF-16": EncodedForm(lambda v: base64_text(v.encode("utf-16-le")), from_base64),
    "base64 twice": EncodedForm(
        lambda v: base64_text(base64_text(b"x" + v.encode()).encode()), from_base64_twice
    ),
    "hexadecimal": EncodedForm(lambda v: v.encode().hex(), from_hex),
    "HEXADECIMAL": EncodedForm(lambda v: v.encode().hex().upper(), from_hex),
    "hexaDecImal": EncodedForm(mixed_hex, from_hex),
    "he:xa:de": EncodedForm(lambda v: v.encode().hex(":"), from_hex),
    "HE XA DE": EncodedForm(lambda v: v.encode().hex(" ").upper(), from_hex),
    "percent": EncodedForm(lambda v: quote(v, safe=""), decode_once(unquote)),
    "percent, small digits": EncodedForm(
        lambda v: re.sub("%..", lambda m: m[0].lower(), quote(v)), decode_once(unquote)
    ),
    "form": EncodedForm(quote_plus, decode_once(unquote_plus)),
    "percent, every byte": EncodedForm(encode_bytes("%%%02x"), decode_once(unquote)),
    "percent twice": EncodedForm(
        lambda v: quote(quote(v, safe=""), safe=""), decode_twice(unquote)
    ),
    "JSON": EncodedForm(raw_inner, unescape),
    "JSON in ASCII": EncodedForm(inner, unescape),
    "JSON with \\/": EncodedForm(lambda v: inner(v).replace("/", "\\/"), unescape),
    "JSON, every character": EncodedForm(
        lambda v: "".join(f"\\u{unit:04X}" for unit in utf16_units(v)), unescape
    ),
    "json, every character": EncodedForm(
        lambda v: "".join(f"\\u{unit:04x}" for unit in utf16_units(v)), unescape
    ),
    "JSON twice": EncodedForm(lambda v: inner(inner(v)), unescape),
    "JSON three times": EncodedForm(lambda v: inner(inner(inner(v))), unescape),
    "JSON of percent": EncodedForm(
        lambda v: inner(f'"{quote(v)}"')[2:-2], lambda t: (unquote(u) for u in unescape(t))
    ),
    "\\x": EncodedForm(
        encode_bytes("\\x%02x"),
        decode_once(
            lambda t: re.sub(
                r"\\x([0-9a-f]{2})", lambda m: bytes.fromhex(m[1]).decode("latin-1"), t
            )
        ),
    ),
    "HTML": EncodedForm(html.escape, decode_once(html.unescape)),
    "HTML, decimal": EncodedForm(
        lambda v: "".join(f"&#{ord(c)};" for c in v), decode_once(html.unescape)
    ),
    "HTML, hexadecimal": EncodedForm(
        lambda v: "".join(f"&#x{ord(c):X};" for c in v), decode_once(html.unescape)
    ),
    "HTML twice": EncodedForm(lambda v: html.escape(html.escape(v)), decode_twice(html.unescape)),
    "over several lines": EncodedForm(
        wrapped_lines, decode_once(lambda t: re.sub(r"[\r\n]+[ \t]*", "", t))
    ),
}


def leaks(value: str, form: EncodedForm, text: str) -> bool:
    """Return whether more than half of *value* can be read from *text* in one piece."""
    half = len(value) // 2 + 1
    windows = [value[at : at + half] for at in range(len(value) - half + 1)]
    readable = [text, *form.decode(text)]
    return any(window in plain for plain in readable for window in windows)


EMBEDDED_FORMS = [
    (name, form)
    for name in ("API_KEY", "PASSWORD", "PIN")
    for form in FORMS
    # A reader that joins the lines loses a blank at the end of a line.
    if (name, form) != ("API_KEY", "over several lines")
]


@pytest.mark.requirement("P13")
@each(("name", "form"), EMBEDDED_FORMS, ids=lambda part: part)
def test_each_encoding_is_found_in_the_middle_of_a_text(name: str, form: str) -> None:
    """It says which secret stood there, and what stood around it stays."""
    value, row = SECRETS[name], FORMS[form]
    text = f"before: {row.encode(value)} (after)"

    clean = REDACTOR.clean(text)

    assert leaks(value, row, text)
    assert not leaks(value, row, clean), clean
    assert f"[REDACTED:{name}]" in clean
    assert clean.startswith("before: ")
    assert clean.endswith(" (after)")


SECRET_VALUES = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Zs", "Zl", "Zp", "Cs"]),
    min_size=8,
    max_size=40,
).filter(lambda value: len(set(value)) > 5 and not re.search(r"[%&\\]|REDACTED", value))


@pytest.mark.requirement("P13")
@given(SECRET_VALUES, st.sampled_from(sorted(FORMS)), st.text("xyz 12:\n", max_size=9))
def test_no_value_leaks_in_any_encoding(value: str, form: str, around: str) -> None:
    """This holds for any value and any surrounding text."""
    row = FORMS[form]
    clean = Redactor({"ANY": value}).clean(f"{around} {row.encode(value)} {around}")

    assume(value not in around)
    assert not leaks(value, row, clean), clean


@pytest.mark.requirement("P13")
@given(
    st.text(string.ascii_letters + string.digits + "+/=.-_ é€😀", min_size=8, max_size=30).filter(
        lambda value: value.strip() == value and len(set(value)) > 5
    ),
    st.data(),
)
def test_each_character_of_a_secret_may_have_another_escape(
    value: str, data: st.DataObject
) -> None:
    """A reader undoes each escape, so each character may be written in its own way."""
    ways = [FORMS[name] for name in ("as it is", "percent, every byte", "HTML, decimal")]
    ways.append(FORMS["JSON, every character"])
    written = "".join(data.draw(st.sampled_from(ways)).encode(character) for character in value)

    assert Redactor({"ANY": value}).clean(f"<{written}>") == "<[REDACTED:ANY]>"


@pytest.mark.requirement("P13")
@given(st.data(), st.sampled_from(sorted(FORMS)))
def test_a_stream_redacts_the_last_piece_of_a_split_secret(data: st.DataObject, form: str) -> None:
    """The stream holds nothing back, and a reader cannot put the whole secret together."""
    value, row = SECRETS["PASSWORD"], FORMS[form]
    written = row.encode(value)
    cut = data.draw(st.integers(1, len(written) - 1))
    stream = RedactedStream()

    heard = [stream.text(piece, REDACTOR) for piece in (written[:cut], written[cut:], "the end")]

    whole = "".join(heard)
    assert value not in {whole, *row.decode(whole)}
    assert "[REDACTED:PASSWORD]" in heard[1] or "[REDACTED:PASSWORD]" in heard[0]
    assert heard[2] == "the end"


def test_each_encoding_of_the_table_can_be_decoded() -> None:
    """The other tests would otherwise prove nothing."""
    unread = [
        name
        for name, form in FORMS.items()
        if not any(
            "plain-value-123" in text for text in form.decode(form.encode("plain-value-123"))
        )
    ]

    assert unread == []
