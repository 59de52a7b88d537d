"""The web."""

from tests.packs.pages import MUST, Page

PAGES = {
    "web_fetch": Page(
        "web",
        {
            "url": ("string", MUST),
            "format": ("string", "markdown"),
            "max_chars": ("integer", 20000),
            "offset": ("integer", 0),
        },
        "TFTT",
        "web:fetch",
        "P9",
    ),
}
