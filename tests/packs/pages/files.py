"""Files and memory."""

from tests.packs.pages import MUST, READS, WRITES, Page

PAGES = {
    "fs_list": Page("filesystem", {"path": ("string", ".")}, READS, "files:read", "X1"),
    "fs_read_text": Page(
        "filesystem",
        {"path": ("string", MUST), "max_bytes": ("integer", 200000)},
        READS,
        "files:read",
        "X1",
    ),
    "fs_write_text": Page(
        "filesystem",
        {"path": ("string", MUST), "text": ("string", MUST), "mkdirs": ("boolean", True)},
        WRITES,
        "files:write",
        "X1",
    ),
    "fs_delete": Page(
        "filesystem",
        {"path": ("string", MUST), "recursive": ("boolean", False)},
        WRITES,
        "files:write",
        "X1",
    ),
    "workspace_read": Page(
        "workspace",
        {"path": ("string", MUST), "max_bytes": ("integer", 200000)},
        READS,
        "files:read",
        "P3",
    ),
    "workspace_write": Page(
        "workspace",
        {"path": ("string", MUST), "content": ("string", MUST), "mkdirs": ("boolean", True)},
        WRITES,
        "files:write",
        "P3",
    ),
    "workspace_list": Page(
        "workspace",
        {"path": ("string", "."), "recursive": ("boolean", False), "limit": ("integer", 1000)},
        READS,
        "files:read",
        "P3",
    ),
    "memory_read": Page("memory", {"name": ("string?", None)}, READS, "memory:read", "P4"),
    "memory_write": Page(
        "memory",
        {"name": ("string", MUST), "content": ("string", MUST), "append": ("boolean", False)},
        "FTFF",
        "memory:write",
        "P4",
    ),
}
