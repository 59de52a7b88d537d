"""GitLab's own description."""

from gatepost.packs.gitlab.settings import SPEC_URL
from tests.packs.pages import MUST, Page

READS, CLOSED = "TFTT", "TFTF"
"""The document calls searching the description closed: GitLab itself is not asked."""

PAGES = {
    "gitlab_openapi_spec": Page(
        "gitlab",
        {
            "spec_url": ("string", SPEC_URL),
            "offset": ("integer", 0),
            "max_bytes": ("integer", 200000),
            "refresh": ("boolean", False),
        },
        READS,
        "gitlab:read",
        "X5",
    ),
    "gitlab_openapi_paths": Page(
        "gitlab",
        {
            "spec_url": ("string", SPEC_URL),
            "filter_text": ("string?", None),
            "limit": ("integer", 200),
            "offset": ("integer", 0),
            "refresh": ("boolean", False),
        },
        CLOSED,
        "gitlab:read",
        "X5",
    ),
    "gitlab_openapi_operation": Page(
        "gitlab",
        {
            "path": ("string", MUST),
            "method": ("string", MUST),
            "spec_url": ("string", SPEC_URL),
            "refresh": ("boolean", False),
        },
        CLOSED,
        "gitlab:read",
        "X5",
    ),
}
