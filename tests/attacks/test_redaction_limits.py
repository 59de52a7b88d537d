"""What was found by trying to keep the redactor busy, and to keep the server with it."""

import asyncio
import tracemalloc
from typing import Annotated, Any, cast

import msgspec
import pytest
from pydantic import AfterValidator, BaseModel

from gatepost import CallContext, Pack, Secret
from gatepost.redaction import secret_search
from gatepost.redaction.json_document import cleaned
from gatepost.redaction.redactor import PROMPT_BYTES, Redactor
from gatepost.redaction.secret_search import MATCHES_AT_ONCE, unwrapped
from gatepost.redaction.spans import replaced
from gatepost.tools.calls.redacted_call import MAX_WRITTEN, MAX_WRITTEN_BYTES
from gatepost.tools.calls.registry import Registry
from gatepost.tools.calls.runner import Runner
from gatepost.tools.offers.offer import Call
from gatepost.tools.schemas.argument_size import LONG_BYTES, MANY_VALUES
from gatepost.tools.schemas.secret import KEYWORD
from gatepost_packs.openapi.description.reading import DEPTH, DescriptionUnreadable, canonical
from tests.attacks.conftest import accept_arguments
from tests.support.endpoint import a_caller
from tests.support.measuring import count_lines, each


class WordRow(BaseModel):
    """A row whose names are words."""

    truncated: str
    other: str


REDACTOR = Redactor({"KEY": "hunter2hunter2"})

LITERALS = {
    "one long": "a" * 20_000,
    "many lines": "\n".join("a" * length for length in range(16, 400)),
    "many texts": msgspec.json.encode(["a" * length for length in range(16, 400)]).decode(),
    "base64 of itself": "YWFh" * 4_000,
}


@pytest.mark.parametrize("literal", LITERALS.values(), ids=LITERALS)
def test_repeated_parts_of_a_secret_are_searched_in_few_steps(
    literal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that takes too long to search is withheld as a whole."""
    monkeypatch.setattr(secret_search, "EFFORT", 4_000)
    redactor = REDACTOR.with_values([("TOKEN", literal)])
    text = literal[-6:-2] * 4_000
    secrets: list[bytes] = []
    taken = count_lines(lambda: secrets.append(redactor.clean(text).encode()))
    assert taken < 60_000
    assert secrets == [b"[REDACTED:TOKEN]"]


def test_a_withheld_json_document_is_still_valid_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """The redactor withholds a document that takes too long to search."""
    monkeypatch.setattr(secret_search, "EFFORT", 1_000)
    redactor = REDACTOR.with_values([("TOKEN", "a" * 4_000)])
    clean = cleaned(msgspec.json.encode({"rows": ["a" * 5_000, 1, None], "b": "c"}), redactor)
    assert clean is not None
    assert msgspec.json.decode(clean)["[REDACTED:TOKEN]"]


def test_an_ordinary_long_text_is_not_withheld() -> None:
    """A log that names a secret in each of its lines is redacted line by line."""
    line = "2026-01-01 connect with hunter2hunter2 as user\n"
    clean = REDACTOR.clean(line * 20_000)
    assert clean == line.replace("hunter2hunter2", "[REDACTED:KEY]") * 20_000


SECRET_WITHIN = {
    "escapes": b"%41" * 100_000 + b"hunter2%68unter2",
    "breaks": b"\n" * (2 * MATCHES_AT_ONCE) + b"hunter2hun\nter2",
    "more breaks than one go": b"x\r\n" * (MATCHES_AT_ONCE + 10) + b"hunter2\n  hunter2 z",
}


@pytest.mark.parametrize("text", SECRET_WITHIN.values(), ids=SECRET_WITHIN)
def test_a_secret_after_more_escapes_than_one_pass_reads_is_found(text: bytes) -> None:
    """The redactor reads such a text in parts, and the last part as well as the first."""
    spans = REDACTOR.spans(text)
    assert [span.name for span in spans] == ["KEY"]
    assert b"unter2" not in replaced(text, spans)


def test_many_escapes_take_a_bounded_amount_of_memory() -> None:
    """The redactor needs less than 130 times the size of the text."""
    text = SECRET_WITHIN["escapes"] * 2
    tracemalloc.start()
    try:
        REDACTOR.spans(text)
        assert tracemalloc.get_traced_memory()[1] < 130 * len(text)
    finally:
        tracemalloc.stop()


def test_wrapped_lines_are_joined_the_same_in_parts_as_at_once() -> None:
    """The redactor joins many wrapped lines in several passes with the same result."""
    lines = [b"a", b" \t b ", b"", b"\x0b\x0cc ", b" "]
    for end in (b"\n", b"\r\n", b"\r"):
        text = end.join(lines * MATCHES_AT_ONCE)
        assert unwrapped(text) == unwrapped(end.join(lines)) * MATCHES_AT_ONCE


def _runner(seen: list[str]) -> Runner:
    pack = Pack("locks")

    @pack.tool()
    async def unlock(ctx: CallContext, token: Secret, text: str, others: list[Secret] = []) -> str:  # noqa: B006
        """Answer the text."""
        seen.append(text)
        return text

    def context(call: Call) -> Any:
        return None

    return Runner(Registry(pack.tools.values()), context_for=context)


def _asked(runner: Runner, name: str = "unlock", **arguments: Any) -> str:
    call = Call(
        caller=a_caller(), name=name, arguments=msgspec.json.encode(arguments), request_id="r"
    )
    outcome = asyncio.run(runner.run(call))
    if outcome.failure is not None:
        return f"{outcome.failure.kind}: {outcome.failure.message}"
    return str(outcome.content[0]["text"])


TOO_MUCH: dict[str, dict[str, Any]] = {
    "one that is too long": {"token": "x" * (MAX_WRITTEN_BYTES + 1), "text": "t"},
    "too many": {"token": "t", "text": "t", "others": [f"value{n}" for n in range(MAX_WRITTEN)]},
    "too long where it is wrong": {"token": {"no": ["x" * MAX_WRITTEN_BYTES, "y"]}, "text": 1},
}


@pytest.mark.parametrize("arguments", TOO_MUCH.values(), ids=TOO_MUCH)
def test_a_call_with_too_many_or_too_long_secrets_is_refused(arguments: dict[str, Any]) -> None:
    """No tool runs, and the refusal contains no part of a secret."""
    seen: list[str] = []
    message = _asked(_runner(seen), **arguments)
    assert message.startswith("validation: The secrets in the arguments are too long")
    assert "xx" not in message
    assert "value" not in message
    assert not seen


def test_the_largest_permitted_number_of_secrets_is_redacted() -> None:
    """A caller cannot bypass the redaction with arguments just below the limits."""
    values = [f"value-number-{n}" for n in range(MAX_WRITTEN - 1)]
    message = _asked(_runner([]), token="t" * 60_000, text=" ".join(values), others=values)
    assert message == " ".join(["[REDACTED:OTHERS]"] * len(values))


SECRET = "s3cretvalue"


def _never(value: str) -> str:
    raise ValueError(f"no good: {value[-1_995:]}")


def _tools() -> Runner:
    """Return tools that check one argument by a type, by a function and by a schema's pattern."""
    pack = Pack("checks")

    @pack.tool()
    async def typed(ctx: CallContext, token: Secret, text: list[str]) -> None:
        """Take texts."""

    @pack.tool()
    async def validated(
        ctx: CallContext, token: Secret, text: list[Annotated[str, AfterValidator(_never)]]
    ) -> None:
        """Take texts that are never good."""

    texts = {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,9}$"}}
    pack.add(
        name="matched",
        description="Take texts.",
        input_schema={
            "type": "object",
            "properties": {"token": {"type": "string", KEYWORD: True}, "text": texts},
        },
        invoke=accept_arguments,
    )
    return Runner(Registry(pack.tools.values()), context_for=lambda call: cast("Any", None))


LONG_ONES: dict[str, list[Any]] = {
    "in a long value": ["y" * 1_990 + SECRET + "y" * LONG_BYTES],
    "in the second of two": ["y" * PROMPT_BYTES, SECRET],
    "in one of many": [SECRET] * (MANY_VALUES + 1),
    "in a name": [{SECRET: "y" * PROMPT_BYTES}],
    "in a short one": [SECRET],
}


@each("text", LONG_ONES.values(), ids=LONG_ONES)
@pytest.mark.parametrize("name", ["typed", "validated", "matched"])
def test_validation_errors_of_any_length_contain_no_secret(name: str, text: Any) -> None:
    """The message contains neither a secret nor a truncated part of one."""
    message = _asked(_tools(), name, token=SECRET, text=text[0] if name == "typed" else text)
    assert message.startswith("validation: `text")
    assert SECRET not in message
    assert "s3cret" not in message
    assert "tvalue" not in message


def test_a_validation_error_of_a_long_argument_omits_its_value() -> None:
    """The message still names the argument and what it should be."""
    message = _asked(_tools(), "typed", token="t", text=[*["y"] * MANY_VALUES, 7])
    assert message == f"validation: `text[{MANY_VALUES}]` should be of type string."


def test_refused_long_arguments_are_validated_once() -> None:
    """A second validation, of the redacted arguments, took as long as the first."""
    pack, looked_at = Pack("counts"), 0

    def count(value: str) -> str:
        nonlocal looked_at
        looked_at += 1
        if value == "bad":
            raise ValueError("it is bad")
        return value

    @pack.tool()
    async def counted(
        ctx: CallContext, token: Secret, text: list[Annotated[str, AfterValidator(count)]]
    ) -> None:
        """Take texts."""

    runner = Runner(Registry(pack.tools.values()), context_for=lambda call: cast("Any", None))
    message = _asked(runner, "counted", token=SECRET, text=[SECRET] * MANY_VALUES + ["bad"])
    assert message == f"validation: `text[{MANY_VALUES}]`: the value is not valid."
    assert looked_at == MANY_VALUES + 1


DEEP_DOCUMENTS = {
    "brackets in a text": b'{"a": "' + b"[" * (DEPTH * 2) + b'"}',
    "an escaped quotation mark": b'{"a": "\\"' + b"[" * (DEPTH * 2) + b'\\\\"}',
    "an escaped backslash at the end": b'{"a": "\\\\", "b": "' + b"{" * (DEPTH * 2) + b'"}',
    "many, side by side": b'{"a": [' + b"[]," * 100_000 + b"[]]}",
}


@pytest.mark.parametrize("data", DEEP_DOCUMENTS.values(), ids=DEEP_DOCUMENTS)
def test_brackets_in_strings_of_a_description_do_not_count_as_nesting(data: bytes) -> None:
    """The server reads an API description whose strings contain many brackets."""
    assert msgspec.json.decode(canonical(data)) == msgspec.json.decode(data)


TOO_DEEP = {
    "lists": b'{"a": ' + b"[" * DEPTH + b"]" * DEPTH + b"}",
    "behind many others": b'{"a": [' + b"[]," * 100_000 + b"[" * DEPTH + b"]" * DEPTH + b"]}",
    "behind an escape": b'{"a": "\\\\", "b": ' + b'{"c":' * DEPTH + b"1" + b"}" * DEPTH + b"}",
}


@pytest.mark.parametrize("data", TOO_DEEP.values(), ids=TOO_DEEP)
def test_api_descriptions_that_are_nested_too_deeply_are_refused(data: bytes) -> None:
    """The nesting limit applies to every part of a description."""
    with pytest.raises(DescriptionUnreadable, match="deeper"):
        canonical(data)


def test_a_secret_that_equals_a_member_name_does_not_rename_the_member() -> None:
    """The redacted answer still matches the tool's output schema."""
    pack = Pack("forms")

    @pack.tool()
    async def form(ctx: CallContext, token: Secret) -> dict[str, list[WordRow]]:
        """Answer rows."""
        return {"rows": [WordRow(truncated=token, other=f"{token}!")]}

    def context(call: Call) -> Any:
        return None

    runner = Runner(Registry(pack.tools.values()), context_for=context)
    arguments = msgspec.json.encode({"token": "truncated"})
    call = Call(caller=a_caller(), name="form", arguments=arguments, request_id="r")
    structured = msgspec.json.decode(msgspec.json.encode(asyncio.run(runner.run(call)).structured))
    assert structured == {"rows": [{"truncated": "[REDACTED:TOKEN]", "other": "[REDACTED:TOKEN]!"}]}
