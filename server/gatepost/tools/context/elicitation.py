"""The requests that a tool sends to the user or the client, and the check of their answers."""

import re
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Generic, Literal, Protocol, TypeVar
from urllib.parse import parse_qsl, urlsplit

import msgspec
from pydantic import TypeAdapter, ValidationError

from gatepost.tools.context.client import Client, InputRequest
from gatepost.tools.context.forms import FormSchema, form_of, is_secret, validation_error_in
from gatepost.tools.context.sampling import why_not_sampled

T = TypeVar("T")
Answer_co = TypeVar("Answer_co", covariant=True)
Action = Literal["accept", "decline", "cancel"]

KEY = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
# Maximum number of requests that a user or a client should get at once.
REQUESTS_AT_ONCE = 32
MAX_ROOTS = 1000
MAX_CHARACTERS = 10_000


class InvalidAnswer(ValueError):
    """An invalid answer; the message says why, without its values."""


class MalformedAnswer(InvalidAnswer):
    """
    An answer without the form that the protocol requires, by a validation error of the client.
    """


class AnswerMismatch(InvalidAnswer):
    """An answer whose content does not match the request; asking again may help."""


class ElicitationRequest(Protocol[Answer_co]):
    """A request to the client in the newest revision's form, and how to read its answer."""

    @property
    def request(self) -> InputRequest:
        """Return the request that is sent."""

    def read(self, answer: Mapping[str, Any]) -> Answer_co:
        """
        Return the author's form of an answer that `check_answer` accepted.

        Raises AnswerMismatch.
        """


class ElicitationResult(msgspec.Struct, Generic[T], frozen=True):
    """
    The user's answer to an elicitation (MCP, elicitation).

    ``content`` holds the checked fields of an accepted form, else None. ``decline`` means that the
    user refused; ``cancel`` means that the user did not decide.
    """

    action: Action
    content: T | None = None

    @property
    def accepted(self) -> bool:
        """Return whether the user accepted."""
        return self.action == "accept"


class Root(msgspec.Struct, frozen=True):
    """A folder of the client's machine that it works in; ``uri`` begins with ``file://``."""

    uri: str
    name: str | None = None


class Elicitation(Generic[T]):
    """
    A form for the user of the client: a message and simple fields.

    *fields* is a pydantic model, a TypedDict (of typing_extensions before Python 3.12), a
    dataclass, or a JSON schema. Fields are strings, numbers, booleans and choices, not nested.
    Raises ValueError if a form cannot show a field, or if a field asks for a secret.
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

    def read(self, answer: Mapping[str, Any]) -> ElicitationResult[T]:
        """Return the user's answer with the checked fields; raises AnswerMismatch."""
        if answer["action"] != "accept":
            return ElicitationResult(answer["action"])
        properties = self.request.params["requestedSchema"]["properties"]
        values = {name: value for name, value in answer["content"].items() if name in properties}
        if self._adapter is None:
            content: Any = values
        else:
            try:
                # Validated as JSON, where a date is a string and a string is never a number.
                content = self._adapter.validate_json(msgspec.json.encode(values), strict=True)
            except ValidationError as error:
                raise AnswerMismatch(_sentence(error)) from None
        return ElicitationResult("accept", content)


class UrlElicitation:
    """
    A page for the user to visit: a message and the URL of your page.

    "accept" only means that the user agreed to open the page. The page must authenticate its
    visitor and compare them with the caller, because URLs can be passed on (E-08). Raises
    ValueError if the URL is not https (except on loopback) or contains a secret.
    """

    def __init__(self, message: str, url: str) -> None:
        params = {"mode": "url", "message": _message(message), "url": _address(url)}
        self.request = InputRequest("elicitation/create", params)

    def read(self, answer: Mapping[str, Any]) -> ElicitationResult[None]:
        """Return the user's answer, which has no content."""
        return ElicitationResult(answer["action"])


class Roots:
    """A request for the folders that the client works in."""

    request = InputRequest("roots/list", {})

    def read(self, answer: Mapping[str, Any]) -> tuple[Root, ...]:
        """Return the folders."""
        return tuple(Root(root["uri"], root.get("name")) for root in answer["roots"])


async def put(client: Client, requests: Mapping[str, ElicitationRequest[Any]]) -> dict[str, Any]:
    """
    Ask all *requests* at once; return the answers by the same keys.

    Raises the exceptions of Client.request, InvalidAnswer, and ValueError for invalid keys.
    """
    if not 0 < len(requests) <= REQUESTS_AT_ONCE or not all(KEY.fullmatch(key) for key in requests):
        raise ValueError(
            f"1 to {REQUESTS_AT_ONCE} forms are asked at once, by keys of 1 to 64 letters, digits, "
            "`_`, `.` and `-`"
        )
    answers = await client.request({key: request.request for key, request in requests.items()})
    results = {}
    for key, request in requests.items():
        results[key] = request.read(check_answer(request.request, answers.get(key)))
    return results


def check_answer(request: InputRequest, answer: Any) -> Mapping[str, Any]:
    """Check an answer against its request; raises MalformedAnswer or AnswerMismatch."""
    if not isinstance(answer, Mapping):
        raise MalformedAnswer("an answer is an object")
    if request.method == "elicitation/create":
        _check_elicited(request.params, answer)
    elif request.method == "roots/list":
        _check_roots(answer)
    elif described_error := why_not_sampled(request.params, answer):
        raise MalformedAnswer(described_error)
    return answer


def _check_elicited(params: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
    action = answer.get("action")
    if action not in ("accept", "decline", "cancel"):
        raise MalformedAnswer("the action is accept, decline or cancel")
    if action != "accept" or params.get("mode") == "url":
        return
    content = answer.get("content")
    if not isinstance(content, Mapping):
        raise MalformedAnswer("an accepted form has content")
    if described_error := validation_error_in(params["requestedSchema"], content):
        raise AnswerMismatch(described_error)


def _check_roots(answer: Mapping[str, Any]) -> None:
    roots = answer.get("roots")
    if not isinstance(roots, list) or len(roots) > MAX_ROOTS:
        raise MalformedAnswer(f"roots is a list of at most {MAX_ROOTS}")
    for root in roots:
        has_name = isinstance(root, Mapping) and isinstance(root.get("name", ""), str)
        if not has_name or not str(root.get("uri")).startswith("file://"):
            raise MalformedAnswer("each root has a uri that begins with file://")


@lru_cache(maxsize=256)
def _form(fields: Any) -> tuple[FormSchema, TypeAdapter[Any]]:
    return form_of(fields), TypeAdapter(fields)


def _message(message: str) -> str:
    if not message or len(message) > MAX_CHARACTERS:
        raise ValueError(f"a form has a message of 1 to {MAX_CHARACTERS} characters")
    return message


def _address(url: str) -> str:
    parts = urlsplit(url)
    host = parts.hostname or ""
    secure = parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host))
    # Browsers read a backslash as a slash, so the host would be another one than here.
    if (
        not host
        or not secure
        or not url.isascii()
        or not url.isprintable()
        or set(url) & set(" \\")
    ):
        raise ValueError("the page to visit has an https URL (http only on this machine)")
    secret = [name for name, _ in parse_qsl(parts.query) if is_secret(name)]
    if "@" in parts.netloc or secret:
        # A URL with a credential would sign in everyone who has it (E-06).
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
