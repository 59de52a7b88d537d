"""Decide whether a response is text, and decode it by the rules of browsers."""

import codecs
import re
from typing import Literal

import webencodings

from gatepost import OutboundReply, ToolFailure

HTML = frozenset({"text/html", "application/xhtml+xml"})
TEXT = re.compile(
    r"text/.*|application/(?:.*\+)?(?:json|xml|yaml|x-yaml|toml|sql|javascript|x-javascript"
    r"|ecmascript|x-ndjson|x-sh|graphql)|message/rfc822|image/svg\+xml"
)
UNDECLARED = frozenset({"", "application/octet-stream", "unknown/unknown"})
LOOKS_HTML = re.compile(rb"\s*<(?:!doctype\s+html|html|head|body|title)\b", re.IGNORECASE)
DOCUMENTS = {
    "application/pdf": "a PDF document",
    "application/msword": "a Word document",
    "application/zip": "a ZIP archive",
}
META = re.compile(rb"<meta\s[^>]{0,500}?charset\s*=\s*[\"']?([a-zA-Z0-9_:-]{1,40})", re.IGNORECASE)
CHARSET = re.compile(r"charset\s*=\s*[\"']?([a-z0-9_:-]{1,40})", re.IGNORECASE)


def kind_of(reply: OutboundReply) -> Literal["html", "text"]:
    """Return how a response is read; ToolFailure if it is not text."""
    declared = reply.headers.get("content-type", "")[:500].partition(";")[0].strip().lower()
    beginning = reply.body[:2048]
    if declared in UNDECLARED:
        # No declared type: except for UTF-16, text holds no zero bytes.
        if LOOKS_HTML.match(beginning):
            return "html"
        if b"\0" not in beginning and not beginning.startswith(b"%PDF-"):
            return "text"
    elif declared in HTML:
        return "html"
    elif TEXT.fullmatch(declared) and not _binary(beginning):
        return "text"
    kind_text = DOCUMENTS.get(declared) or (
        f"{declared[:100]!r}" if declared else "bytes that are not text"
    )
    raise ToolFailure(
        "validation",
        f"The address leads to {kind_text}, and web_fetch reads only HTML pages and plain text. "
        "Look for a page with the same content.",
        field="url",
    )


def decoded(body: bytes, content_type: str, *, html: bool) -> str:
    """
    Return *body* as text.

    The encoding is given by the byte order mark, else the header or, in HTML, a meta element
    (Encoding standard, "decode"), else it is UTF-8 if valid, else windows-1252.
    """
    labels = CHARSET.findall(content_type[:500])[:1]
    if html and (match := META.search(body[:4096])):
        labels.append(match[1].decode())
    declared = [encoding for label in labels if (encoding := webencodings.lookup(label))]
    text, _ = webencodings.decode(body, declared[0] if declared else _undeclared(body))
    return str(text)


def _undeclared(body: bytes) -> str:
    try:
        # The last character may be incomplete at the place where reading stopped.
        codecs.getincrementaldecoder("utf-8")().decode(body)
    except UnicodeDecodeError:
        return "windows-1252"
    return "utf-8"


def _binary(beginning: bytes) -> bool:
    return b"\0" in beginning and not beginning.startswith((b"\xff\xfe", b"\xfe\xff"))
