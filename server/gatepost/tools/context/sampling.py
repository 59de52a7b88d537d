"""Requests of a tool to the client's model (MCP, sampling)."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

import msgspec

from gatepost.tools.context.client import InputRequest

SamplingMessage = Mapping[str, Any]

# An answer is a few paragraphs; this leaves room for a picture.
MAX_BYTES = 1_000_000
MEMBERS: Mapping[str, tuple[str, ...]] = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
}
"""The kinds of content and the string members of each."""


class SamplingOptions(TypedDict, total=False):
    """The options of a sampling request; clients may ignore most of them."""

    system: str
    """The system prompt."""
    temperature: float
    stop: Sequence[str]
    """Strings at which the model stops."""
    models: Sequence[str]
    """Names of models or parts of them, the preferred one first."""
    tools: Sequence[Mapping[str, Any]]
    """Tools for the model, in MCP's form; the client needs the capability `sampling.tools`."""
    tool_choice: Mapping[str, Any]


class Sampled(msgspec.Struct, frozen=True):
    """The answer of the client's model; it is untrusted, so check it before you act on it."""

    content: tuple[Mapping[str, Any], ...]
    """Content blocks in MCP's form."""
    model: str
    stop_reason: str | None = None
    role: str = "assistant"

    @property
    def text(self) -> str:
        """Return the text of all text blocks."""
        return "\n".join(block["text"] for block in self.content if block["type"] == "text")


class Sampling:
    """
    A request to the client's model: a string or messages (``{"role": …, "content": …}``).

    *max_tokens* limits the answer. Raises ValueError for messages that MCP does not allow.
    """

    def __init__(
        self,
        messages: str | Sequence[SamplingMessage],
        max_tokens: int,
        **options: Unpack[SamplingOptions],
    ) -> None:
        if isinstance(messages, str):
            messages = [{"role": "user", "content": {"type": "text", "text": messages}}]
        if max_tokens < 1:
            raise ValueError("max_tokens must be positive")
        if unknown := options.keys() - SamplingOptions.__annotations__.keys():
            raise TypeError(f"a sampling has no option {', '.join(sorted(unknown))}")
        _check_messages(messages)
        params: dict[str, Any] = {"messages": list(messages), "maxTokens": max_tokens}
        optional = {
            "systemPrompt": options.get("system"),
            "temperature": options.get("temperature"),
            "stopSequences": options.get("stop"),
            "tools": options.get("tools"),
            "toolChoice": options.get("tool_choice"),
        }
        params.update({name: value for name, value in optional.items() if value is not None})
        if models := options.get("models"):
            params["modelPreferences"] = {"hints": [{"name": name} for name in models]}
        if "toolChoice" in params and not params.get("tools"):
            raise ValueError("tool_choice without tools chooses nothing")
        self.request = InputRequest("sampling/createMessage", params)

    def read(self, answer: Mapping[str, Any]) -> Sampled:
        """Return the author's form of an answer that `why_not_sampled` accepted."""
        content = tuple(blocks(answer["content"]))
        return Sampled(content, answer["model"], answer.get("stopReason"), answer["role"])


def why_not_sampled(params: Mapping[str, Any], answer: Mapping[str, Any]) -> str | None:
    """Return why an answer is no CreateMessageResult for *params*; None if it is one."""
    if answer.get("role") not in ("user", "assistant") or not isinstance(answer.get("model"), str):
        return "a sampling result has a role and a model"
    if not isinstance(answer.get("stopReason"), str | None):
        return "stopReason is a text"
    content = blocks(answer.get("content"))
    if not content or not all(_is_block(block, params) for block in content):
        return "a sampling result has content of known kinds"
    if len(msgspec.json.encode(answer)) > MAX_BYTES:
        return f"a sampling result has at most {MAX_BYTES} bytes"
    return None


def blocks(content: Any) -> list[Any]:
    """Return the content blocks of a message as a list."""
    return content if isinstance(content, list) else [content]


def _is_block(block: Any, params: Mapping[str, Any]) -> bool:
    if not isinstance(block, Mapping):
        return False
    kind = block.get("type")
    if kind == "tool_use" and params.get("tools"):
        has_names = isinstance(block.get("id"), str) and isinstance(block.get("name"), str)
        return has_names and isinstance(block.get("input"), Mapping)
    members = MEMBERS.get(str(kind))
    return members is not None and all(isinstance(block.get(member), str) for member in members)


def _check_messages(messages: Sequence[SamplingMessage]) -> None:
    """Check the roles, and that only its results follow each use of a tool (SA-02)."""
    if not messages:
        raise ValueError("sampling needs a message")
    open_calls: list[str] = []
    for message in messages:
        content = blocks(message.get("content"))
        if message.get("role") not in ("user", "assistant") or not all(
            isinstance(block, Mapping) and isinstance(block.get("type"), str) for block in content
        ):
            raise ValueError("a message has a role, user or assistant, and content blocks")
        results = [block.get("toolUseId") for block in content if block["type"] == "tool_result"]
        if results and len(results) != len(content):
            raise ValueError("a message with results of tools holds nothing else")
        if sorted(map(str, results)) != sorted(open_calls) or (
            open_calls and message["role"] != "user"
        ):
            raise ValueError("each use of a tool is followed at once by its result")
        open_calls = [str(block.get("id")) for block in content if block["type"] == "tool_use"]
        if open_calls and message["role"] != "assistant":
            raise ValueError("only the assistant uses tools")
    if open_calls:
        raise ValueError("each use of a tool is followed at once by its result")
