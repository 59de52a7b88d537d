"""Every tool that takes a URL or an endpoint: whoever adds one adds a row."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

Call = tuple[str, dict[str, Any]]


class Taker(NamedTuple):
    """How a URL gets to a tool: the calls to make, the last of which would send a request."""

    what: str
    pack: str
    calls: Callable[[str], list[Call]]
    follows: bool
    """Whether it follows redirects."""


def described(server: str, **more: Any) -> Call:
    """Load a description of an API that says where its server is."""
    document = {
        "openapi": "3.1.0",
        "info": {"title": "x", "version": "1"},
        "servers": [{"url": server}],
        "paths": {"/to": {"get": {"responses": {}}}},
    }
    return "openapi_load", {"name": "x", "spec_content": json.dumps(document), **more}


CALL: Call = ("openapi_call", {"name": "x", "path": "/to", "method": "GET", "timeout_s": 5})

TAKERS = [
    Taker("web_fetch", "web", lambda url: [("web_fetch", {"url": url})], follows=True),
    Taker(
        "openapi_load spec_url",
        "openapi",
        lambda url: [("openapi_load", {"name": "x", "spec_url": url})],
        follows=True,
    ),
    Taker(
        "openapi_load base_url_override",
        "openapi",
        lambda url: [described("https://www.web.test", base_url_override=url), CALL],
        follows=False,
    ),
    Taker(
        "gitlab_openapi_spec spec_url",
        "gitlab",
        lambda url: [("gitlab_openapi_spec", {"spec_url": url, "refresh": True})],
        follows=True,
    ),
    Taker("openapi servers", "openapi", lambda url: [described(url), CALL], follows=False),
    Taker(
        "gitlab_request endpoint",
        "gitlab",
        lambda url: [
            ("gitlab_request", {"endpoint": url, "token": "x", "path": "/to", "timeout_s": 5})
        ],
        follows=True,
    ),
]
