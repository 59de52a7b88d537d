"""What a tool asks of a person or of the client: its questions, and what comes back."""

import re
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Generic, Literal, Protocol, TypeVar
from urllib.parse import parse_qsl, urlsplit

import msgspec
from pydantic import TypeAdapter, ValidationError

from gatepost.tools.client import Client, InputRequest
from gatepost.tools.form import Schema, form_of, is_secret, mistake_in
from gatepost.tools.sampling import why_not_sampled

T = TypeVar("T")
Answer_co = TypeVar("Answer_co", covariant=True)
Action = Literal["accept", "decline", "cancel"]

KEY = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
# More than a person or a client should be asked at once.
AT_ONCE = 32
MOST_ROOTS = 1000
MOST_CHARACTERS = 10_000


class Misanswered(ValueError):
    """An answer that cannot be taken; the message says why, without its values."""


class Malformed(Misanswered):
    """It is no answer to such a question at all: the client's mistake."""


class Unfit(Misanswered):
    """It is an answer whose content is not what was asked for; asking again may help."""


class Question(Protocol[Answer_co]):
    """Something to ask: its request in the newest revision's form, and how to read the answer."""

    @property
    def request(self) -> InputRequest:
        """What goes out."""

    def read(self, answer: Mapping[str, Any]) -> Answer_co:
        """The answer as the author sees it, once `check_answer` let it pass; raises Unfit."""


class Answered(msgspec.Struct, Generic[T], frozen=True):
    """
    What a person did about a question (MCP, elicitation).

    ``content`` are the checked fields of an accepted form, else None. ``decline`` is a no to the
    question; ``cancel`` means that nobody decided.
    """

    action: Action
    content: T | None = None

    @property
    def accepted(self) -> bool:
        """Whether the person said yes."""
        return self.action == "accept"


class Root(msgspec.Struct, frozen=True):
    """A folder that the client works in; ``uri`` begins with ``file://`` and is on its side."""

    uri: str
    name: str | None = None


class Elicitation(Generic[T]):
    """
    A form for the person at the client: a sentence, and fields of simple shapes.

    *fields* is a pydantic model, a TypedDict (of typing_extensions before Python 3.12), a
    dataclass, or a JSON schema; texts, numbers, booleans and choices, nothing nested. ValueError
    when a field cannot be shown, or asks for a secret.
    """

    def __init__(self, message: str, fields: type[T] | Mapping[str, Any]) -> None:
        self._adapter: TypeAdapter[Any] | None = None
        shape: Any = fields
        if isinstance(shape, Mapping):
            schema = form_of(shape)
        else:
            schema, self._adapter = _form(shape)
        params = {"mode": "form", "message": _message(message), "requestedSchema": schema}
        self.request = InputRequest("elicitation/create", params)

    def read(self, answer: Mapping[str, Any]) -> Answered[T]:
        """See Question."""
        if answer["action"] != "accept":
            return Answered(answer["action"])
        properties = self.request.params["requestedSchema"]["properties"]
        given = {name: value for name, value in answer["content"].items() if name in properties}
        if self._adapter is None:
            content: Any = given
        else:
            try:
                # As JSON: a date is a text there, and no text is a number.
                content = self._adapter.validate_json(msgspec.json.encode(given), strict=True)
            except ValidationError as error:
                raise Unfit(_sentence(error)) from None
        return Answered("accept", content)


class UrlElicitation:
    """
    A page to visit: a sentence, and the address of a page of yours.

    "accept" only means that the person agreed to open it. The page itself must find out who is
    there and hold that against the caller this was asked for (E-08): addresses are passed on.
    ValueError for an address that is no https URL, except on loopback, or that carries a secret.
    """

    def __init__(self, message: str, url: str) -> None:
        params = {"mode": "url", "message": _message(message), "url": _address(url)}
        self.request = InputRequest("elicitation/create", params)

    def read(self, answer: Mapping[str, Any]) -> Answered[None]:
        """See Question."""
        return Answered(answer["action"])


class Roots:
    """Which folders the client works in."""

    request = InputRequest("roots/list", {})

    def read(self, answer: Mapping[str, Any]) -> tuple[Root, ...]:
        """See Question."""
        return tuple(Root(root["uri"], root.get("name")) for root in answer["roots"])


async def put(client: Client, questions: Mapping[str, Question[Any]]) -> dict[str, Any]:
    """
    Ask *questions*, all at once; the answers by the same keys.

    Raises what Client.request raises, Misanswered, and ValueError for keys that cannot be used.
    """
    if not 0 < len(questions) <= AT_ONCE or not all(KEY.fullmatch(key) for key in questions):
        raise ValueError(
            f"1 to {AT_ONCE} questions are asked at once, by keys of 1 to 64 letters, digits, "
            "`_`, `.` and `-`"
        )
    answers = await client.request({key: one.request for key, one in questions.items()})
    taken = {}
    for key, question in questions.items():
        taken[key] = question.read(check_answer(question.request, answers.get(key)))
    return taken


def check_answer(request: InputRequest, answer: Any) -> Mapping[str, Any]:
    """Hold an answer against its question, whoever brought it; raises Malformed or Unfit."""
    if not isinstance(answer, Mapping):
        raise Malformed("an answer is an object")
    if request.method == "elicitation/create":
        _check_elicited(request.params, answer)
    elif request.method == "roots/list":
        _check_roots(answer)
    elif mistake := why_not_sampled(request.params, answer):
        raise Malformed(mistake)
    return answer


def _check_elicited(params: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
    action = answer.get("action")
    if action not in ("accept", "decline", "cancel"):
        raise Malformed("the action is accept, decline or cancel")
    if action != "accept" or params.get("mode") == "url":
        return
    content = answer.get("content")
    if not isinstance(content, Mapping):
        raise Malformed("an accepted form has content")
    if mistake := mistake_in(params["requestedSchema"], content):
        raise Unfit(mistake)


def _check_roots(answer: Mapping[str, Any]) -> None:
    roots = answer.get("roots")
    if not isinstance(roots, list) or len(roots) > MOST_ROOTS:
        raise Malformed(f"roots is a list of at most {MOST_ROOTS}")
    for root in roots:
        named = isinstance(root, Mapping) and isinstance(root.get("name", ""), str)
        if not named or not str(root.get("uri")).startswith("file://"):
            raise Malformed("each root has a uri that begins with file://")


@lru_cache(maxsize=256)
def _form(fields: Any) -> tuple[Schema, TypeAdapter[Any]]:
    return form_of(fields), TypeAdapter(fields)


def _message(message: str) -> str:
    if not message or len(message) > MOST_CHARACTERS:
        raise ValueError(f"a question has a message of 1 to {MOST_CHARACTERS} characters")
    return message


def _address(url: str) -> str:
    parts = urlsplit(url)
    host = parts.hostname or ""
    secure = parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host))
    if not host or not secure or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("the page to visit has an https URL (http only on this machine)")
    secret = [name for name, _ in parse_qsl(parts.query) if is_secret(name)]
    if "@" in parts.netloc or secret:
        # Whoever holds the address would be signed in (E-06).
        raise ValueError("the address of a page must carry no password, key or token")
    return url


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _sentence(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    return f"`{field}`: {first['msg']}" if field else first["msg"]
