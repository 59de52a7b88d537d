"""
Extract the title and main content of an HTML page; runs in a child process.

turbohtml parses as browsers do and writes the Markdown. This file decides which parts of a page a
model gets: no text that a person would not see, and no link that cannot be fetched.
"""

import re
from typing import Any
from urllib.parse import urljoin, urlsplit

import turbohtml
from turbohtml import Document, Element, Markdown, PlainText, Text

CHARACTERS = 3_000_000
"""Characters of one page; links and indentation add to what was read."""
TITLE_CHARACTERS = 300
URL_CHARACTERS = 2_000
LITTLE = 250
"""Characters; a shorter part of a page is not its main content."""
CANDIDATES = 50
"""Elements that are compared as the main content."""
COLUMNS, CELLS, CELL_CHARACTERS = 40, 100_000, 1_000
"""A larger table, or one with a longer cell, is for layout: no column holds a paragraph."""

HIDDEN_ELEMENTS = (
    "audio, button, canvas, datalist, embed, iframe, math, noembed, noframes, noscript, object, "
    "script, select, style, svg, template, textarea, title, video, xmp, [hidden], "
    "[aria-hidden=true i]"
)
"""Elements without text, and those that a browser hides: they are not part of the message."""
INVISIBLE = re.compile(r"(?:\A|[;\s])(?:display\s*:\s*none|visibility\s*:\s*hidden)", re.IGNORECASE)
SURROUNDING_ELEMENTS = (
    "aside, dialog, footer, nav, header:not(main header, article header, section header), "
    "[role=banner i], [role=complementary i], [role=contentinfo i], [role=dialog i], "
    "[role=menu i], [role=navigation i], [role=search i]"
)
"""Elements around the main content."""
CONTROLS = re.compile("[\0-\x08\x0b\x0e-\x1f\x7f-\x9f\U000e0000-\U000e007f]")
"""Characters that no reader sees: controls, and the tag characters that hide text."""
NESTED_MARKS = (
    "a a, :is(b, strong) :is(b, strong), :is(i, em) :is(i, em), :is(code, kbd, samp) code"
)
ANCHORS = frozenset("§¶#") | {"🔗"}
"""Texts of links from a heading to itself."""

SAMPLE = {
    "source": "<title>t</title><p style='color:red'><a href='/b'>b</a> <img src=c alt=d>"
    "<table><tr><td>e<tr><td>f</table>",
    "url": "https://example.org/a",
    "markdown": True,
}
"""A request that uses what most pages use (`start.py`)."""

MARKDOWN = Markdown(
    escaping=Markdown.Escaping(mode="minimal", asterisks=False, underscores=False),
    links=Markdown.Links(autolink=False),
    tables=Markdown.Tables(cell_blocks="text"),
)
PLAIN_TEXT = PlainText(bullet="- ", table_cell_separator="\t", images=True)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """
    Return `title`, `text` and whether the text was `cut`.

    *request* has the page's `source` and `url`, and `markdown`: false for plain text.
    """
    page = ExtractedPage(request, whole_page=False)
    if len(page.text) < LITTLE:
        # All text is in elements that usually surround the content. Too much text is better than
        # none.
        everything = ExtractedPage(request, whole_page=True)
        page = everything if len(everything.text) > 2 * len(page.text) else page
    return {"title": page.title, "text": page.text[:CHARACTERS], "cut": page.cut}


class ExtractedPage:
    """A page as it is shown; what surrounds its main content only if *whole_page*."""

    def __init__(self, request: dict[str, Any], *, whole_page: bool) -> None:
        document = turbohtml.parse(request["source"], positions=False)
        self._link_characters = 0
        self._base = self._url = request["url"]
        if base := document.select_one("base[href]"):
            self._base = self._absolute(base.attr("href") or "", ("http", "https")) or self._url
        self.title = _title(document)
        document.remove(
            HIDDEN_ELEMENTS if whole_page else f"{HIDDEN_ELEMENTS}, {SURROUNDING_ELEMENTS}"
        )
        for element in document.select("[style]"):
            if INVISIBLE.search(element.attr("style") or ""):
                element.decompose()
        part = document if whole_page else _main(document)
        part.strip_tags(NESTED_MARKS)
        self._resolve(part)
        _flatten_layout(part)
        text = part.to_markdown(MARKDOWN) if request["markdown"] else part.to_text(PLAIN_TEXT)
        self.text = CONTROLS.sub("", text)
        self.cut = max(len(self.text), self._link_characters) > CHARACTERS

    def _resolve(self, part: Document | Element) -> None:
        """Make links and images absolute; leave the text alone of those that cannot be fetched."""
        own_url = self._url.partition("#")[0]
        for link in part.select("a"):
            target = self._absolute(link.attr("href") or "", ("http", "https", "mailto"))
            same_page = target.partition("#")[0] == own_url
            if same_page and link.text.strip() in ANCHORS:
                link.decompose()
            elif same_page or not target or not link.text.strip():
                link.unwrap()
            else:
                link.attrs.clear()
                link.attrs["href"] = target
        for image in part.select("img"):
            description = " ".join((image.attr("alt") or "").split())
            source = self._absolute(image.attr("src") or "", ("http", "https"))
            image.attrs.clear()
            if description and source:
                image.attrs.update({"alt": description, "src": source})
            else:
                image.replace_with(Text(description))

    def _absolute(self, link: str, schemes: tuple[str, ...]) -> str:
        """Return the target of *link*; empty if it is none of *schemes*, or beyond the limit."""
        link = link.strip()
        if not link or len(link) > URL_CHARACTERS or self._link_characters > CHARACTERS:
            return ""
        try:
            target = urljoin(self._base, link)
            scheme = urlsplit(target).scheme
        except ValueError:
            return ""
        if scheme not in schemes or len(target) > URL_CHARACTERS:
            return ""
        # A long base before each of many short links would multiply the page.
        self._link_characters += len(target)
        return re.sub(r"[\s()<>]", lambda match: f"%{ord(match[0]):02X}", target)


def _title(document: Document) -> str:
    for selector in ("title", "h1"):
        for element in document.select(f"{selector}:not(svg *)")[:CANDIDATES]:
            if title := " ".join(CONTROLS.sub("", element.text).split()):
                return title[:TITLE_CHARACTERS]
    return ""


def _main(document: Document) -> Document | Element:
    """
    Return the longest `main`, else the `article` with most of the text, else the whole page.
    """
    total = len(document.text)
    for selector, min_chars in (("main, [role=main i]", LITTLE), ("article", total // 2 + 1)):
        candidates = document.select(selector)[:CANDIDATES]
        longest = max(candidates, key=lambda element: len(element.text), default=None)
        if longest is not None and len(longest.text.strip()) >= min_chars:
            return longest
    return document


def _flatten_layout(part: Document | Element) -> None:
    """Turn tables for layout into blocks, and give the rows of all others the same length."""
    for table in part.select("table:has(table)"):
        table.tag = "div"
    for table in part.select("table"):
        rows = [row.select("td, th") for row in table.select("tr")]
        width = max(map(len, rows), default=0)
        if _is_layout(rows, width):
            table.tag = "div"
            continue
        for row in rows:
            for cell in row:
                cell.attrs.clear()
            for _ in range(width - len(row) if row else 0):
                row[-1].insert_after(Element("td"))
    for element in part.select("caption, tbody, thead, tfoot, tr, td, th"):
        if element.closest("table") is None:
            element.tag = "div"


def _is_layout(rows: list[list[Element]], width: int) -> bool:
    if not 1 < width <= COLUMNS or len(rows) * width > CELLS:
        return True
    return any(len(cell.text) > CELL_CHARACTERS for row in rows for cell in row)
