"""Describe pydantic's validation errors to an agent, without the secrets in the arguments."""

import re

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gatepost.tools.offers.offer import ToolFailure
from gatepost.tools.schemas.bounded_validation import HiddenArguments, path_of, received

# As many validation errors as an agent can correct at once; thirty would fill its context window.
SHOWN_ERRORS = 3

MAX_LISTED = 1_000
"""More validation errors are not described, because that takes longer than finding them."""

SHORTENED = frozenset({"too_short", "string_too_short", "string_pattern_mismatch"})

# pydantic names the value by its type ("Input should", "String should"); here it has a name.
PYDANTIC_SHOULD = re.compile(r"\w+ should (.*)", re.DOTALL)

WITHOUT_VALUE = frozenset(
    {
        "bool_type",
        "dict_type",
        "float_type",
        "greater_than",
        "greater_than_equal",
        "int_type",
        "json_invalid",
        "json_type",
        "less_than",
        "less_than_equal",
        "list_type",
        "literal_error",
        "model_type",
        "multiple_of",
        "string_pattern_mismatch",
        "string_too_long",
        "string_too_short",
        "string_type",
        "too_long",
        "too_short",
    }
)
"""The validation errors whose message never quotes the value; that of an author's validator may."""


def is_caused_by_cut(error: ValidationError) -> bool:
    """Return whether the cut of a document may have caused the validation error."""
    details = () if error.error_count() > MAX_LISTED else error.errors(include_url=False)
    return any(detail["type"] in SHORTENED for detail in details)


def failure_of(error: ValidationError, names: str, hidden: HiddenArguments) -> ToolFailure:
    """Return the failure for these validation errors; *names* lists the function's arguments."""
    count = error.error_count()
    if count > MAX_LISTED:
        message = (
            f"The arguments have {count} validation errors, too many to list. Send less at once."
        )
        return ToolFailure("validation", message)
    details = error.errors(include_url=False)
    first = details[:SHOWN_ERRORS]
    sentences = [_sentence(detail, names, hidden) for detail in first]
    if omitted := len(details) - len(first):
        sentences.append(f"And {omitted} more.")
    return ToolFailure(
        "validation", " ".join(sentences), field=path_of(list(first[0]["loc"])) or None
    )


def _sentence(detail: ErrorDetails, names: str, hidden: HiddenArguments) -> str:
    field = path_of(list(detail["loc"]))
    if detail["type"] == "missing":
        return f"`{field}` is required."
    if detail["type"] == "extra_forbidden":
        hint = f"; it takes: {names}" if len(detail["loc"]) == 1 else ""
        return f"`{field}` is not an argument here{hint}."
    message = detail["msg"].removeprefix("Value error, ").removesuffix(".")
    subject = f"`{field}`" if field else "The arguments"
    secret = hidden.hides(detail["loc"])
    if secret and detail["type"] not in WITHOUT_VALUE:
        return f"{subject}: the value is not valid."
    if match := PYDANTIC_SHOULD.match(message):
        return f"{subject} should {match[1]}{'' if secret else received(detail['input'])}."
    return f"{subject}: {message}."
