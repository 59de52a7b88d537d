"""Check the requests of an upstream to the caller's client: which may pass, and in which words."""

import unicodedata
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from gatepost.tools.context.client import Capabilities, InputRequest, lacking, required_by
from gatepost.tools.context.elicitation import Elicitation, UrlElicitation
from gatepost.tools.context.sampling import Sampling
from gatepost.upstreams.upstream_server import Allowed, UpstreamServer

MAX_TOGETHER = 8
"""Maximum number of requests that an upstream may have open at once."""
MAX_MESSAGE = 2_000
MAX_REQUEST_BYTES = 32_768
MAX_URL = 2_048
CAPABILITIES: tuple[Allowed, ...] = ("elicitation", "sampling", "roots")
"""The requests that a client can get; each has its word in `UpstreamServer.allow`."""
HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
"""The categories of characters that a reader does not see, or that reorder what a reader sees."""

UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""The exceptions that reading a request of any form may raise."""
SAMPLING = {
    "systemPrompt": "system",
    "temperature": "temperature",
    "stopSequences": "stop",
    "tools": "tools",
    "toolChoice": "tool_choice",
}


class Unsupported(Exception):
    """The upstream's request cannot be passed on; the message is a sentence for the upstream."""


def mirrored(server: UpstreamServer, declared: Capabilities) -> dict[str, Any]:
    """Return the capabilities to declare to an upstream: the client's, as far as allowed."""
    allowed: dict[str, Any] = {
        name: declared[name] for name in CAPABILITIES if name in server.allow and name in declared
    }
    if "roots" in allowed:
        # Changes of the client's folders are not passed on.
        allowed["roots"] = {}
    extensions = declared.get("extensions")
    if isinstance(extensions, Mapping) and TASKS in extensions:
        allowed["extensions"] = {TASKS: {}}
    return {name: value for name, value in allowed.items() if isinstance(value, Mapping)}


TASKS = "io.modelcontextprotocol/tasks"


def input_request(
    server: UpstreamServer, declared: Capabilities, method: str, params: Mapping[str, Any]
) -> InputRequest:
    """
    Return an upstream's request in the form in which the caller's client gets it.

    *declared* is what the upstream was told. Raises Unsupported.
    """
    try:
        if len(msgspec.json.encode(params)) > MAX_REQUEST_BYTES:
            raise ValueError(f"it has more than {MAX_REQUEST_BYTES} bytes")
        converted = _converted(server, method, params)
    except UNREADABLE as error:
        raise Unsupported(f"The request cannot be shown to the client: {error}") from None
    if lacking(declared, required_by({"": converted})):
        raise Unsupported("The client does not support this request.")
    return converted


def _converted(server: UpstreamServer, method: str, params: Mapping[str, Any]) -> InputRequest:
    if method == "elicitation/create":
        if params.get("mode", "form") == "url":
            return _page(server, params)
        message = f"{server.name}: {clean(str(params['message']), MAX_MESSAGE)}"
        return Elicitation(message, cleaned(params["requestedSchema"])).request
    if method == "sampling/createMessage":
        return _sampling(params)
    if method == "roots/list":
        return InputRequest("roots/list", {})
    raise Unsupported(f"The client has no method {method[:64]!r}.")


def _page(server: UpstreamServer, params: Mapping[str, Any]) -> InputRequest:
    url = checked_page(params["url"])
    text = clean(str(params["message"]), MAX_MESSAGE)
    host = urlsplit(url).hostname
    message = f"{server.name}: {text} (The page is at {host}, a server of others.)"
    return UrlElicitation(message, url).request


def checked_page(url: Any) -> str:
    """Return the URL of a page that a user may be asked to visit; raises ValueError."""
    page = str(url)
    if urlsplit(page).scheme != "https" or len(page) > MAX_URL:
        raise ValueError("the page to visit has an https URL")
    UrlElicitation("A page", page)  # refuses a URL that shows another host than it leads to
    return page


def _sampling(params: Mapping[str, Any]) -> InputRequest:
    options = {option: params[name] for name, option in SAMPLING.items() if params.get(name)}
    hints = (params.get("modelPreferences") or {}).get("hints") or ()
    models = [str(hint["name"]) for hint in hints if hint.get("name")]
    max_tokens = params["maxTokens"]
    if not isinstance(max_tokens, int) or isinstance(max_tokens, bool):
        raise ValueError("maxTokens is a number")
    sampling: Any = Sampling(
        [
            {"role": message["role"], "content": message["content"]}
            for message in params["messages"]
        ],
        max_tokens,
        **options,
        models=models,
    )
    return InputRequest("sampling/createMessage", sampling.request.params)


def clean(text: str, max_chars: int) -> str:
    """Cut a text to *max_chars*, without characters that hide or reorder others."""
    visible = "".join(
        char
        for char in text[: max_chars + 1]
        if char in "\n\t" or unicodedata.category(char) not in HIDDEN_CATEGORIES
    )
    return visible if len(visible) <= max_chars else visible[: max_chars - 1] + "…"


def cleaned(value: Any) -> Any:
    """Return a decoded document with all of its texts cleaned."""
    if isinstance(value, str):
        return clean(value, MAX_MESSAGE)
    if isinstance(value, Mapping):
        return {clean(str(name), 200): cleaned(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(item) for item in value]
    return value
