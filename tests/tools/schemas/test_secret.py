"""Arguments that hold secrets: found in any schema, told to the model, and never quoted."""

import json
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field

from gatepost import CallContext, Outcome, Pack, Secret, ToolFailure
from gatepost.policy.idempotency.idempotency_record import digest_of, template_of
from gatepost.tools.authoring.schema import texts_of
from gatepost.tools.offers.offer import IdempotencyKey
from gatepost.tools.schemas.secret import HINT, KEYWORD, literals, secret_arguments
from tests.support.endpoint import a_caller
from tests.support.measuring import each

SECRET_VALUE = "glpat-hunter2"
SECRET_SCHEMA = {"type": "string", KEYWORD: True}
ANY_KEY = None


def refuse(value: str) -> str:
    raise ValueError(f"{value} will not do")


class LoginForm(BaseModel):
    user: str
    password: Secret


pack = Pack("locks")


@pack.tool()
async def unlock(
    ctx: CallContext,
    token: Annotated[Secret, "A token of the door."],
    pin: Annotated[Secret, Field(max_length=4)] = "",
    headers: dict[str, Secret] | None = None,
    logins: list[LoginForm] = [],  # noqa: B006  # never changed
    checked: Annotated[Secret, AfterValidator(refuse)] | None = None,
    other: int = 0,
) -> str:
    """Open the door."""
    return token


UNLOCK_TOOL = pack.tools["unlock"]


def test_a_signature_marks_its_secrets() -> None:
    """Clients and whatever redacts find them; the model reads that it may name one."""
    properties = UNLOCK_TOOL.input_schema["properties"]

    assert properties["token"] == {
        "type": "string",
        KEYWORD: True,
        "description": f"A token of the door. {HINT}",
    }
    assert properties["logins"]["items"]["properties"]["password"] == SECRET_SCHEMA | {
        "description": HINT
    }
    assert UNLOCK_TOOL.secret_arguments == (
        ("token",),
        ("pin",),
        ("headers", ANY_KEY),
        ("logins", ANY_KEY, "password"),
        ("checked",),
    )


TREE = {"properties": {"key": SECRET_SCHEMA, "in": {"items": {"$ref": "#/$defs/tree"}}}}
SCHEMAS: dict[str, tuple[dict[str, Any], list[tuple[str | None, ...]]]] = {
    "none": ({"properties": {KEYWORD: {"type": "string"}}}, []),
    "a property of that name": ({"properties": {KEYWORD: True, "a": SECRET_SCHEMA}}, [("a",)]),
    "an example of one": (
        {"properties": {"a": {"examples": [SECRET_SCHEMA], "default": SECRET_SCHEMA}}},
        [],
    ),
    "nested": ({"properties": {"a": {"properties": {"b": SECRET_SCHEMA}}}}, [("a", "b")]),
    "any of": ({"properties": {"a": {"anyOf": [SECRET_SCHEMA, {"type": "null"}]}}}, [("a",)]),
    "any name": ({"properties": {"a": {"additionalProperties": SECRET_SCHEMA}}}, [("a", ANY_KEY)]),
    "names by pattern": ({"patternProperties": {"^x-": SECRET_SCHEMA}}, [(ANY_KEY,)]),
    "a tuple": ({"properties": {"a": {"prefixItems": [{}, SECRET_SCHEMA]}}}, [("a", ANY_KEY)]),
    "conditional": ({"if": {}, "then": {"properties": {"a": SECRET_SCHEMA}}}, [("a",)]),
    "referred to": (
        {"properties": {"a": {"$ref": "#/$defs/t~1k"}}, "$defs": {"t/k": SECRET_SCHEMA}},
        [("a",)],
    ),
    "beside what contains itself": (
        {
            "properties": {"a": SECRET_SCHEMA, "b": {"$ref": "#/$defs/b"}},
            "$defs": {"b": {"items": {"$ref": "#/$defs/b"}}},
        },
        [("a",)],
    ),
}


@each(("schema", "paths"), SCHEMAS.values(), ids=SCHEMAS)
def test_secrets_are_found_in_any_schema(
    schema: dict[str, Any], paths: list[tuple[str | None, ...]]
) -> None:
    """They may be below any keyword; text that only resembles a mark is no secret."""
    assert secret_arguments({"type": "object", **schema}) == tuple(paths)


async def answer(ctx: CallContext, arguments: Any) -> Outcome:
    return Outcome()


REFUSED_SCHEMAS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a task": (
        {"properties": {"a": SECRET_SCHEMA}},
        {"task_support": "optional"},
        "cannot become a task",
    ),
    "not true": ({"properties": {"a": {KEYWORD: "yes"}}}, {}, "the only value is true"),
    "the whole": ({KEYWORD: True}, {}, "as a whole"),
    "recursive": (
        {"properties": {"a": {"$ref": "#/$defs/tree"}}, "$defs": {"tree": TREE}},
        {},
        "contains itself",
    ),
    "of nobody": ({"$defs": {"x": SECRET_SCHEMA}}, {}, "lead to"),
    "in a header": (
        {"properties": {"a": SECRET_SCHEMA | {"x-mcp-header": "Token"}}},
        {},
        "proxies log headers",
    ),
}


@pytest.mark.parametrize(
    ("schema", "options", "expected_text"), REFUSED_SCHEMAS.values(), ids=REFUSED_SCHEMAS
)
def test_a_tool_that_could_not_redact_its_secret_is_refused(
    schema: dict[str, Any], options: dict[str, Any], expected_text: str
) -> None:
    """The error comes at the registration."""
    with pytest.raises(ValueError, match=expected_text):
        Pack("x").add(
            "x",
            description="X.",
            input_schema={"type": "object", **schema},
            invoke=answer,
            **options,
        )


def test_prompts_and_resources_take_no_secrets() -> None:
    """Clients show and keep what these are asked with."""

    def ask(ctx: CallContext, token: Secret) -> str:
        return token

    with pytest.raises(TypeError, match="only tools take secrets"):
        texts_of(ask)


WRONG_ARGUMENTS: dict[str, tuple[Any, str]] = {
    "another type": ({"token": [SECRET_VALUE]}, "`token` should be a valid string."),
    "a number": ({"token": 4711}, "`token` should be a valid string."),
    "too long": ({"token": "x", "pin": SECRET_VALUE}, "`pin` should have at most 4 characters."),
    "not where it belongs": (
        {"token": "x", "headers": SECRET_VALUE},
        "`headers` should be an object.",
    ),
    "deep inside": (
        {"token": "x", "logins": [{"user": SECRET_VALUE, "password": 4711}]},
        "`logins[0].password` should be a valid string.",
    ),
    "an author's own words": (
        {"token": "x", "checked": SECRET_VALUE},
        "`checked`: the value is not val",
    ),
    "no arguments at all": (SECRET_VALUE, "The arguments should be"),
}


@pytest.mark.parametrize(
    ("arguments", "expected_text"), WRONG_ARGUMENTS.values(), ids=WRONG_ARGUMENTS
)
def test_an_error_does_not_quote_a_secret(arguments: Any, expected_text: str) -> None:
    """The message names the allowed values and not the given one."""
    with pytest.raises(ToolFailure) as raised:
        UNLOCK_TOOL.check(json.dumps(arguments).encode())

    assert expected_text in raised.value.failure.message
    assert SECRET_VALUE not in raised.value.failure.message
    assert "4711" not in raised.value.failure.message


shapes = st.recursive(
    st.just(SECRET_VALUE) | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.just("user"), inner),
    max_leaves=4,
)


@given(st.sampled_from(["token", "pin", "headers", "logins", "checked"]), shapes)
def test_an_error_does_not_quote_a_secret_of_any_shape(argument: str, shape: Any) -> None:
    """All its texts are literals of the call and are redacted elsewhere, too."""
    arguments = json.dumps({"token": "secret:DOOR", argument: shape}).encode()
    message = ""
    try:
        UNLOCK_TOOL.check(arguments)
    except ToolFailure as refused:
        message = refused.failure.message
    assert SECRET_VALUE not in message
    error_text = literals([(argument,)], arguments)
    assert (SECRET_VALUE in error_text) == (SECRET_VALUE in json.dumps(shape))


def test_an_error_quotes_an_argument_that_is_no_secret() -> None:
    """That helps a model most."""
    with pytest.raises(ToolFailure, match=r"`other` should be a valid integer \(got \"many\"\)"):
        UNLOCK_TOOL.check(b'{"token":"x","other":"many"}')


RAW_SCHEMA = {
    "type": "object",
    "properties": {
        "token": SECRET_SCHEMA | {"minLength": 20, "enum": ["secret:A", "secret:B"]},
        "auth": {"type": "object", "properties": {"key": SECRET_SCHEMA}, "minProperties": 2},
        "other": {"type": "string", "maxLength": 2},
    },
    "not": {"required": ["both", "ways"]},
}
RAW_WRONG: dict[str, Any] = {
    "a value": {"token": SECRET_VALUE},
    "a type": {"token": 4711},
    "around it": {"auth": {"key": SECRET_VALUE}},
    "in its place": {"auth": SECRET_VALUE},
    "the whole": {"token": SECRET_VALUE, "both": 1, "ways": 1},
}


@pytest.mark.parametrize("arguments", RAW_WRONG.values(), ids=RAW_WRONG)
def test_an_error_of_a_raw_schema_does_not_quote_a_secret(arguments: dict[str, Any]) -> None:
    """The validator's own words hold the value; they are not used."""
    tool = Pack("x").add("x", description="X.", input_schema=RAW_SCHEMA, invoke=answer)
    with pytest.raises(ToolFailure) as raised:
        tool.check(json.dumps(arguments).encode())

    assert "should" in raised.value.failure.message or "satisfy" in raised.value.failure.message
    assert SECRET_VALUE not in raised.value.failure.message
    assert "4711" not in raised.value.failure.message
    with pytest.raises(ToolFailure, match="abc"):
        tool.check(b'{"other":"abc"}')


LITERALS: dict[str, tuple[Any, list[str]]] = {
    "a literal": ({"token": SECRET_VALUE, "other": "x"}, [SECRET_VALUE]),
    "a name": ({"token": "secret:DOOR"}, []),
    "several": ({"token": "a", "headers": {"x": "b", "y": "c"}}, ["a", "b", "c"]),
    "in a list": ({"logins": [{"user": "u", "password": "a"}, {"password": "b"}]}, ["a", "b"]),
    "in the wrong place": (
        {"headers": SECRET_VALUE, "token": [{"x": SECRET_VALUE + "2"}]},
        [SECRET_VALUE + "2", SECRET_VALUE],
    ),
    "a number": ({"token": 4711}, ["4711"]),
    "no object": ([SECRET_VALUE], []),
}


@pytest.mark.parametrize(("arguments", "literals_found"), LITERALS.values(), ids=LITERALS)
def test_literals_of_a_call_are_found(arguments: Any, literals_found: list[str]) -> None:
    """Invalid arguments count, too, because error messages quote them."""
    assert literals(UNLOCK_TOOL.secret_arguments, json.dumps(arguments).encode()) == literals_found


def test_a_stored_digest_does_not_confirm_guessed_arguments() -> None:
    """The arguments give the stored digest only with the idempotency key, which is not kept."""
    arguments, spelt_otherwise = b'{"token":"hunter2"}', b'{ "token": "hunter2" }'
    terms = [
        template_of(a_caller(), UNLOCK_TOOL, IdempotencyKey("idempotency", key), text)
        for key, text in (("a", arguments), ("a", spelt_otherwise), ("b", arguments))
    ]

    assert terms[0].digest == terms[1].digest
    assert len({terms[0].digest, terms[2].digest, digest_of(arguments)}) == 3


def test_arguments_that_are_no_json_have_no_literals() -> None:
    """Such arguments reach no tool."""
    assert literals(UNLOCK_TOOL.secret_arguments, b'{"token":') == []
    assert literals((), b'{"token":"x"}') == []


def test_a_secret_under_a_repeated_name_is_found() -> None:
    """The tool gets one of the two, but both are in the text of the call."""
    twice = b'{"token":"first-token","token":"second-token"}'

    assert literals(UNLOCK_TOOL.secret_arguments, twice) == ["first-token", "second-token"]
