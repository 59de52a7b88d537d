"""The vault."""

from tests.packs.pages import MUST, READS, Page

PAGES = {
    "vault_read": Page("vault", {"path": ("string", MUST)}, READS, "vault:read", "P5"),
    "vault_write": Page(
        "vault",
        {
            "path": ("string", MUST),
            "content": ("string", MUST),
            "front_matter": ("object?", None),
            "append": ("boolean", False),
        },
        "FTFF",
        "vault:write",
        "P5",
    ),
    "vault_list": Page(
        "vault",
        {
            "folder": ("string", "."),
            "tag": ("string?", None),
            "limit": ("integer", 200),
            "offset": ("integer", 0),
        },
        READS,
        "vault:read",
        "P5",
    ),
    "vault_search": Page(
        "vault",
        {"query": ("string", MUST), "tag": ("string?", None), "limit": ("integer", 20)},
        READS,
        "vault:read",
        "P5",
    ),
}
