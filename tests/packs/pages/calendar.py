"""Calendars (OpenPact, signature table)."""

from tests.packs.pages import MUST, Page

PAGES = {
    "calendar_read": Page(
        "calendar",
        {
            "start": ("string", MUST),
            "end": ("string", MUST),
            "calendar": ("string?", None),
            "query": ("string?", None),
            "limit": ("integer", 100),
        },
        "TFTT",
        "calendar:read",
        "P7",
    ),
}
