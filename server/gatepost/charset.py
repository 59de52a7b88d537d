"""Which codec a character set is read by; a stranger's header names it."""

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


def codec_of(name: str) -> str | None:
    """
    Python's codec for that name; None for what is no character set of the web.

    Whatever `bytes.decode` knows must not be asked for: its punycode takes minutes for megabytes.
    """
    return CODECS.get(name.lower().replace("_", "-"))
