"""Git and SSH."""

from tests.packs.pages import MUST, READS, Page

PAGES = {
    "git": Page(
        "git", {"args": ("array", MUST), "timeout_s": ("integer", 120)}, "FTFF", "git:run", "X2"
    ),
    "ssh_public_key": Page("ssh", {}, READS, "git:read", "X3"),
}
