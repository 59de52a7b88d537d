"""What the bytes of a page mean, by what it says of itself, never by what Python would decode."""

import codecs
import re

from gatepost.charset import codec_of

BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
META = re.compile(rb"<meta\s[^>]{0,500}?charset\s*=\s*[\"']?([a-zA-Z0-9_:-]{1,40})", re.IGNORECASE)
CHARSET = re.compile(r"charset\s*=\s*[\"']?([a-z0-9_:-]{1,40})", re.IGNORECASE)


def decoded(body: bytes, content_type: str, *, html: bool) -> str:
    """
    *body* as text: by its byte order mark, else what the header or, in HTML, a meta element names
    (Encoding standard, "decode"), else UTF-8 where it is that, else windows-1252.
    """
    for mark, codec in BOMS:
        if body.startswith(mark):
            return body[len(mark) :].decode(codec, "replace")
    for name in _named(body, content_type, html=html):
        if known := codec_of(name):
            return body.decode(known, "replace")
    try:
        # The last character may have been cut where the reading stopped.
        return codecs.getincrementaldecoder("utf-8")().decode(body)
    except UnicodeDecodeError:
        return body.decode("cp1252", "replace")


def _named(body: bytes, content_type: str, *, html: bool) -> list[str]:
    named = CHARSET.findall(content_type[:500])[:1]
    if html:
        found = META.search(body[:4096])
        named += [found[1].decode()] if found else []
    return named
