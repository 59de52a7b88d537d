"""APIs by their descriptions."""

from tests.packs.pages import MUST, READS, Page

PAGES = {
    "openapi_load": Page(
        "openapi",
        {
            "name": ("string", MUST),
            "spec_url": ("string?", None),
            "spec_content": ("string?", None),
            "auth_header": ("string?", None),
            "auth_header_name": ("string", "Authorization"),
            "base_url_override": ("string?", None),
        },
        "FFTT",
        "openapi:load",
        "X7",
    ),
    "openapi_list_apis": Page("openapi", {}, READS, "openapi:read", "X7"),
    "openapi_list_endpoints": Page(
        "openapi",
        {
            "name": ("string", MUST),
            "filter": ("string?", None),
            "tag": ("string?", None),
            "limit": ("integer", 50),
            "offset": ("integer", 0),
        },
        READS,
        "openapi:read",
        "X7",
    ),
    "openapi_get_operation": Page(
        "openapi",
        {"name": ("string", MUST), "path": ("string", MUST), "method": ("string", MUST)},
        READS,
        "openapi:read",
        "X7",
    ),
    "openapi_call": Page(
        "openapi",
        {
            "name": ("string", MUST),
            "path": ("string", MUST),
            "method": ("string", MUST),
            "path_params": ("object?", None),
            "query_params": ("object?", None),
            "headers": ("object?", None),
            "body": ("any", None),
            "timeout_s": ("integer", 30),
            "max_response_bytes": ("integer", 100000),
        },
        "FTFT",
        "openapi:call",
        "X7",
    ),
}
