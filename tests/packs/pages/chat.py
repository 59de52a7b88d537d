"""Chat (OpenPact, signature table)."""

from tests.packs.pages import MUST, Page

PAGES = {
    "chat_send": Page(
        "chat",
        {
            "channel": ("string", MUST),
            "message": ("string", MUST),
            "title": ("string?", None),
        },
        "FFFT",
        "chat:send",
        "P6",
    ),
}
