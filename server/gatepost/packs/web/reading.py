"""An answer as text for a model, or the sentence that says why it is none."""

import re
from typing import Literal

from gatepost.packs.web.charset import decoded
from gatepost.packs.web.page import Page, readable
from gatepost.packs.web.tokens import CONTROLS
from gatepost.tools.api import ToolFailure
from gatepost.tools.surroundings import Reply

Format = Literal["markdown", "text", "raw"]

HTML = frozenset({"text/html", "application/xhtml+xml"})
TEXT = re.compile(
    r"text/.*|application/(?:.*\+)?(?:json|xml|yaml|x-yaml|toml|sql|javascript|x-javascript"
    r"|ecmascript|x-ndjson|x-sh|graphql)|message/rfc822|image/svg\+xml"
)
UNSAID = frozenset({"", "application/octet-stream", "unknown/unknown"})
LOOKS_HTML = re.compile(rb"\s*<(?:!doctype\s+html|html|head|body|title)\b", re.IGNORECASE)
DOCUMENTS = {
    "application/pdf": "a PDF document",
    "application/msword": "a Word document",
    "application/zip": "a ZIP archive",
}


def kind_of(reply: Reply) -> Literal["html", "text"]:
    """How an answer is read; ToolFailure for what is no text."""
    said = reply.headers.get("content-type", "")[:500].partition(";")[0].strip().lower()
    beginning = reply.body[:2048]
    if said in UNSAID:
        # Nobody said what it is: UTF-16 aside, text holds no zero bytes.
        if LOOKS_HTML.match(beginning):
            return "html"
        if b"\0" not in beginning and not beginning.startswith(b"%PDF-"):
            return "text"
    elif said in HTML:
        return "html"
    elif TEXT.fullmatch(said) and not _binary(beginning):
        return "text"
    what = DOCUMENTS.get(said) or (f"{said[:100]!r}" if said else "no text")
    raise ToolFailure(
        "validation",
        f"What is there is {what}, which web_fetch does not read: it reads HTML pages and plain "
        "text. Look for a page with the same content.",
        field="url",
    )


def read(reply: Reply, form: Format) -> Page:
    """Title and text of an answer; what takes long, so that it is done in a thread."""
    html = kind_of(reply) == "html"
    source = decoded(reply.body, reply.headers.get("content-type", ""), html=html)
    if html and form != "raw":
        page = readable(source, reply.url, marks=form == "markdown")
        return page._replace(cut=page.cut or reply.truncated)
    return Page("", CONTROLS.sub("", source), reply.truncated)


def _binary(beginning: bytes) -> bool:
    return b"\0" in beginning and not beginning.startswith((b"\xff\xfe", b"\xfe\xff"))
