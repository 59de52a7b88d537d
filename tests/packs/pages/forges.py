"""GitHub and GitLab."""

from tests.packs.pages import MUST, READS, Page

PAGES = {
    "github_list_issues": Page(
        "github",
        {
            "repo": ("string", MUST),
            "state": ("string", "open"),
            "labels": ("array", []),
            "limit": ("integer", 30),
            "page": ("integer", 1),
        },
        "TFTT",
        "github:read",
        "P8",
    ),
    "github_create_issue": Page(
        "github",
        {
            "repo": ("string", MUST),
            "title": ("string", MUST),
            "body": ("string", ""),
            "labels": ("array", []),
            "assignees": ("array", []),
        },
        "FFFT",
        "github:write",
        "P8",
    ),
    "gitlab_request": Page(
        "gitlab",
        {
            "endpoint": ("string", MUST),
            "token": ("string", MUST),
            "path": ("string", MUST),
            "method": ("string", "GET"),
            "params": ("object?", None),
            "json_body": ("any", None),
            "form": ("object?", None),
            "headers": ("object?", None),
            "files": ("array?", None),
            "timeout_s": ("integer", 30),
            "max_bytes": ("integer", 200_000),
            "include_text": ("boolean", True),
            "include_base64": ("boolean", False),
        },
        "FTFT",
        "gitlab:request",
        "X4",
    ),
    "gitlab_tool_help": Page("gitlab", {}, READS, "gitlab:read", "X6"),
}
