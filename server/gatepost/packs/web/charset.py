"""What the bytes of a page mean, by what it says of itself, never by what Python would decode."""

import codecs
import re

BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
META = re.compile(rb"<meta\s[^>]{0,500}?charset\s*=\s*[\"']?([a-zA-Z0-9_:-]{1,40})", re.IGNORECASE)
CHARSET = re.compile(r"charset\s*=\s*[\"']?([a-z0-9_:-]{1,40})", re.IGNORECASE)

# The names of the Encoding standard that pages use, as Python's codecs. Python knows more codecs
# than that, and some of them run programs' text or unpack what is packed.
CODECS = {
    **dict.fromkeys(("utf-8", "utf8", "unicode-1-1-utf-8"), "utf-8"),
    **dict.fromkeys(("utf-16", "utf-16le", "unicode", "ucs-2"), "utf-16-le"),
    "utf-16be": "utf-16-be",
    **dict.fromkeys(
        ("ascii", "us-ascii", "latin1", "iso-8859-1", "windows-1252", "cp1252"), "cp1252"
    ),
    **{f"iso-8859-{n}": f"iso8859-{n}" for n in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)},
    **{f"windows-{n}": f"cp{n}" for n in (1250, 1251, 1253, 1254, 1255, 1256, 1257, 1258)},
    **{f"cp{n}": f"cp{n}" for n in (866, 1250, 1251)},
    **dict.fromkeys(("iso-8859-9", "latin5"), "cp1254"),
    "latin2": "iso8859-2",
    "windows-874": "cp874",
    "tis-620": "cp874",
    "koi8-r": "koi8-r",
    "koi8-u": "koi8-u",
    "macintosh": "mac-roman",
    **dict.fromkeys(("shift-jis", "sjis", "x-sjis", "windows-31j", "ms-kanji"), "cp932"),
    "euc-jp": "euc-jp",
    "iso-2022-jp": "iso-2022-jp",
    **dict.fromkeys(("euc-kr", "ks-c-5601-1987", "korean", "windows-949"), "cp949"),
    **dict.fromkeys(("gb2312", "gbk", "x-gbk", "gb18030", "chinese"), "gb18030"),
    **dict.fromkeys(("big5", "big5-hkscs", "x-x-big5"), "big5hkscs"),
}


def decoded(body: bytes, content_type: str, *, html: bool) -> str:
    """
    *body* as text: by its byte order mark, else what the header or, in HTML, a meta element names
    (Encoding standard, "decode"), else UTF-8 where it is that, else windows-1252.
    """
    for mark, codec in BOMS:
        if body.startswith(mark):
            return body[len(mark) :].decode(codec, "replace")
    for name in _named(body, content_type, html=html):
        codec = CODECS.get(name.lower().replace("_", "-"), "")
        if codec:
            return body.decode(codec, "replace")
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
