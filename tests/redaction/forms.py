"""The table of docs/redaction.md: how a value may be written, and how a reader undoes that."""

import base64
import binascii
import html
import json
import re
from collections.abc import Callable, Iterator
from urllib.parse import quote, quote_plus, unquote, unquote_plus

import msgspec

Encode = Callable[[str], str]
Decode = Callable[[str], Iterator[str]]


class Form(msgspec.Struct, frozen=True):
    """One row: *encode* writes a value, *decode* reads whatever could be one out of a text."""

    encode: Encode
    decode: Decode


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def runs(text: str) -> Iterator[bytes]:
    """Each base64 text in a text, from each of the four places where its groups may begin."""
    for run in re.findall(r"[A-Za-z0-9+/_-]{4,}", text):
        for skip in range(4):
            digits = run[skip:].replace("-", "+").replace("_", "/")
            digits = digits[: len(digits) - (len(digits) % 4 == 1)]
            try:
                yield base64.b64decode(digits + "=" * (-len(digits) % 4))
            except binascii.Error:
                continue


def from_base64(text: str) -> Iterator[str]:
    for data in runs(text):
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
    """As programs read strings of JSON, wherever one stands."""
    for _ in range(3):
        text = re.sub(
            r"\\(?:u([0-9A-Fa-f]{4})|(.))",
            lambda m: chr(int(m[1], 16)) if m[1] else {"n": "\n", "t": "\t"}.get(m[2], m[2]),
            text,
        )
        text = text.encode("utf-16", errors="surrogatepass").decode("utf-16", errors="replace")
        yield text


def once(decode: Encode) -> Decode:
    def decoded(text: str) -> Iterator[str]:
        yield decode(text)

    return decoded


def twice(decode: Encode) -> Decode:
    return once(lambda text: decode(decode(text)))


def every(pattern: str) -> Encode:
    return lambda value: "".join(pattern % byte for byte in value.encode())


def utf16_units(value: str) -> Iterator[int]:
    wide = value.encode("utf-16-be")
    return (int.from_bytes(wide[at : at + 2], "big") for at in range(0, len(wide), 2))


def mixed_hex(value: str) -> str:
    digits = value.encode().hex()
    return "".join(d.upper() if at % 3 else d for at, d in enumerate(digits))


def wrapped(text: str, columns: int = 19) -> str:
    return "\r\n    ".join(text[at : at + columns] for at in range(0, len(text), columns))


def inner(value: str) -> str:
    return json.dumps(value)[1:-1]


def raw_inner(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)[1:-1]


FORMS: dict[str, Form] = {
    "as it is": Form(str, once(str)),
    "base64": Form(lambda v: b64(v.encode()), from_base64),
    "base64, one byte before": Form(lambda v: b64(b"u" + v.encode() + b"\n"), from_base64),
    "base64, two bytes before": Form(lambda v: b64(b"a:" + v.encode() + b"rest"), from_base64),
    "base64 for URLs": Form(
        lambda v: base64.urlsafe_b64encode(v.encode()).decode().rstrip("="), from_base64
    ),
    "base64, wrapped": Form(lambda v: wrapped(b64(b"{%b}" % v.encode())), from_wrapped),
    "base64, percent-encoded": Form(
        lambda v: quote(b64(v.encode()), safe=""), lambda t: from_base64(unquote(t))
    ),
    "base64 of JSON": Form(lambda v: b64(json.dumps({"key": v}).encode()), from_json_in_base64),
    "base64 of UTF-16": Form(lambda v: b64(v.encode("utf-16-le")), from_base64),
    "base64 twice": Form(lambda v: b64(b64(b"x" + v.encode()).encode()), from_base64_twice),
    "hexadecimal": Form(lambda v: v.encode().hex(), from_hex),
    "HEXADECIMAL": Form(lambda v: v.encode().hex().upper(), from_hex),
    "hexaDecImal": Form(mixed_hex, from_hex),
    "he:xa:de": Form(lambda v: v.encode().hex(":"), from_hex),
    "HE XA DE": Form(lambda v: v.encode().hex(" ").upper(), from_hex),
    "percent": Form(lambda v: quote(v, safe=""), once(unquote)),
    "percent, small digits": Form(
        lambda v: re.sub("%..", lambda m: m[0].lower(), quote(v)), once(unquote)
    ),
    "form": Form(quote_plus, once(unquote_plus)),
    "percent, every byte": Form(every("%%%02x"), once(unquote)),
    "percent twice": Form(lambda v: quote(quote(v, safe=""), safe=""), twice(unquote)),
    "JSON": Form(raw_inner, unescape),
    "JSON in ASCII": Form(inner, unescape),
    "JSON with \\/": Form(lambda v: inner(v).replace("/", "\\/"), unescape),
    "JSON, every character": Form(
        lambda v: "".join(f"\\u{unit:04X}" for unit in utf16_units(v)), unescape
    ),
    "json, every character": Form(
        lambda v: "".join(f"\\u{unit:04x}" for unit in utf16_units(v)), unescape
    ),
    "JSON twice": Form(lambda v: inner(inner(v)), unescape),
    "JSON three times": Form(lambda v: inner(inner(inner(v))), unescape),
    "JSON of percent": Form(
        lambda v: inner(f'"{quote(v)}"')[2:-2], lambda t: (unquote(u) for u in unescape(t))
    ),
    "\\x": Form(
        every("\\x%02x"),
        once(
            lambda t: re.sub(
                r"\\x([0-9a-f]{2})", lambda m: bytes.fromhex(m[1]).decode("latin-1"), t
            )
        ),
    ),
    "HTML": Form(html.escape, once(html.unescape)),
    "HTML, decimal": Form(lambda v: "".join(f"&#{ord(c)};" for c in v), once(html.unescape)),
    "HTML, hexadecimal": Form(lambda v: "".join(f"&#x{ord(c):X};" for c in v), once(html.unescape)),
    "HTML twice": Form(lambda v: html.escape(html.escape(v)), twice(html.unescape)),
    "over several lines": Form(wrapped, once(lambda t: re.sub(r"[\r\n]+[ \t]*", "", t))),
}


def leaks(value: str, form: Form, text: str) -> bool:
    """Whether more than half of *value* in one piece can be read out of *text* in that form."""
    half = len(value) // 2 + 1
    windows = [value[at : at + half] for at in range(len(value) - half + 1)]
    readable = [text, *form.decode(text)]
    return any(window in plain for plain in readable for window in windows)
