"""Turn a description's bytes, YAML or JSON, into JSON of bounded size and depth."""

from itertools import accumulate
from typing import Any

import msgspec

from gatepost import YamlError, YamlLimits, read_yaml

MAX_BYTES = 20_000_000
"""Largest description; GitHub's has thirteen million bytes."""
DEPTH = 100
YAML_LIMITS = YamlLimits(size=MAX_BYTES, depth=DEPTH, nodes=7_500_000, weight=60_000_000)

CHUNK_BYTES = 65_536
STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
NOT_BRACKETS = bytes(set(range(256)) - STEPS.keys())


class DescriptionUnreadable(ValueError):
    """The bytes are not a description; the message is a sentence for the author."""


def canonical(data: bytes) -> bytes:
    """Return the description as JSON whose outermost value is an object; DescriptionUnreadable."""
    if len(data) > MAX_BYTES:
        raise DescriptionUnreadable(
            f"The description has {len(data)} bytes; at most {MAX_BYTES} are allowed."
        )
    data = data.removeprefix(b"\xef\xbb\xbf")
    json_problem = None
    if data.lstrip()[:1] == b"{":
        try:
            return _checked(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            json_problem = DescriptionUnreadable(f"The description is not valid JSON: {error}.")
        except RecursionError:
            raise _too_deep() from None
    try:
        return _encoded(_from_yaml(data))
    except DescriptionUnreadable as error:
        raise json_problem or error from None


def _checked(data: bytes) -> bytes:
    data.decode()  # the decoder does not check strings that are not decoded
    data = msgspec.json.format(data, indent=-1)
    msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    if _depth(data) > DEPTH:
        raise _too_deep()
    return data


def _depth(data: bytes) -> int:
    """Return the nesting depth of valid JSON."""
    # The time depends only on the length. One expression over a long string would block the
    # interpreter for seconds.
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(bare.split(b'"')[::2]).translate(None, NOT_BRACKETS)
    deepest = depth = 0
    for at in range(0, len(brackets), CHUNK_BYTES):
        levels = [
            *accumulate(map(STEPS.__getitem__, brackets[at : at + CHUNK_BYTES]), initial=depth)
        ]
        deepest, depth = max(deepest, max(levels)), levels[-1]
    return deepest


def _from_yaml(data: bytes) -> Any:
    try:
        # A bound such as 2**64 must stay a number.
        return read_yaml(data, YAML_LIMITS, inexact="nearest")
    except YamlError as error:
        raise DescriptionUnreadable(f"The description {error}.") from None


def _encoded(value: Any) -> bytes:
    if not isinstance(value, dict):
        raise DescriptionUnreadable(
            "The description must be an object with `openapi` or `swagger` in it."
        )
    try:
        encoded = msgspec.json.encode(value)
    except (UnicodeEncodeError, RecursionError):
        raise DescriptionUnreadable(
            "The description holds text that is not valid Unicode."
        ) from None
    if len(encoded) > 2 * MAX_BYTES:
        raise DescriptionUnreadable("The description is too large with its YAML aliases expanded.")
    return encoded


def _too_deep() -> DescriptionUnreadable:
    return DescriptionUnreadable(f"The description is nested deeper than {DEPTH} levels.")
