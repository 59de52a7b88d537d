"""Decide by size whether to check arguments in a thread, and whether to quote their values."""

from gatepost.documents.json_shape import values_bound
from gatepost.redaction.redactor import is_prompt

LONG_BYTES = 131_072
"""Above this size an answer is searched in a thread.

The search takes a few milliseconds, or 0.1 seconds for an answer made to take long."""
MANY_VALUES = 4_000
"""Above this number of values arguments are checked in a thread, even if they are short.

Each value can take up to five microseconds."""
SHORT_BYTES = 2 * MANY_VALUES
"""Arguments up to this size hold fewer values: each takes two bytes."""


def is_large(arguments: bytes, *, reads_texts: bool) -> bool:
    """Return whether to check arguments in a thread; *reads_texts* as `Offer.reads_texts`."""
    size = len(arguments)
    if size <= SHORT_BYTES:
        return False
    return size > LONG_BYTES or values_bound(arguments, within_texts=reads_texts) > MANY_VALUES


def is_quoted(arguments: bytes, *, with_secrets: bool) -> bool:
    """
    Return whether validation errors in the arguments are described with the values at fault.

    Such a description is redacted by redacting and checking the arguments once more.
    *with_secrets*: some of the arguments are secrets.
    """
    if not is_prompt(arguments, of_caller=with_secrets):
        return False
    return (
        len(arguments) <= SHORT_BYTES or values_bound(arguments, within_texts=True) <= MANY_VALUES
    )
