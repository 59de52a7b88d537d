"""Whether a caller could have a mark of redaction stand for what the approver has to see."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    load_pem_private_key,
    load_ssh_private_key,
)

MARKED = re.compile(r"\[REDACTED:([^\[\]\n]{1,128})\]")
KEY = "PRIVATE_KEY"
MOST_KEYS = 8
"""Each costs about a millisecond to read."""
_LINES = re.compile(
    r"-----BEGIN [A-Z0-9 ]+-----\n(?:[^\n]{64,76}\n)*[^\n]{1,76}\n-----END [A-Z0-9 ]+-----"
)


def hides_words(arguments: bytes, shown: bytes) -> bool:
    """
    Whether the mark of a private key stands in *shown* for something else.

    Of all forms by which secrets are known it alone takes words and lines: what is put between its
    two marks, perhaps over several arguments, was shown to nobody and ran all the same.
    """
    originals, told = list(_leaves(arguments)), list(_leaves(shown))
    if len(originals) != len(told):
        return True
    hidden = [
        part
        for one, other in zip(originals, told, strict=True)
        if one != other and f":{KEY}]" in str(other)
        for part in _parts(str(one), str(other))
    ]
    return len(hidden) > MOST_KEYS or not all(map(_is_key, hidden))


def hides_arguments(arguments: bytes, before: bytes, after: bytes, secrets: Sequence[str]) -> bool:
    """
    Whether the values of secret arguments, *secrets*, hide anything but those arguments.

    *before* and *after* are what is shown without and with them. A caller who writes an address
    into a password as well would have it withheld in both places.
    """
    own = Counter(secrets)
    triples = zip(_leaves(arguments), _leaves(before), _leaves(after), strict=True)
    for original, one, other in triples:
        if one == other:
            continue
        if not own[str(original)]:
            return True
        own[str(original)] -= 1
    return False


def _leaves(encoded: bytes) -> Iterator[Any]:
    """Names and values in their order; of names that became alike each."""
    left: list[Any] = [json.loads(encoded, object_pairs_hook=list)]
    while left:
        one = left.pop()
        if isinstance(one, list | tuple):
            left.extend(reversed(one))
        else:
            yield one


def _parts(original: str, told: str) -> Iterator[str]:
    """What of *original* the marks of keys stand for; at least that much."""
    pieces = MARKED.split(told)
    names, segments = pieces[1::2], pieces[::2]
    at = len(segments[0])
    for name, segment in zip(names[:-1], segments[1:-1], strict=True):
        end = max(original.find(segment, at), at)
        if name == KEY:
            yield original[at:end]
        at = end + len(segment)
    if names[-1] == KEY:
        yield original[at : len(original) - len(segments[-1])]


def _is_key(text: str) -> bool:
    encoded = text.strip().replace("\r\n", "\n")
    if not _LINES.fullmatch(encoded):
        return False
    load = load_ssh_private_key if "OPENSSH" in encoded[:40] else load_pem_private_key
    try:
        load(encoded.encode(), None, unsafe_skip_rsa_key_validation=True)
    except TypeError:
        return True  # a key under a password
    except (ValueError, UnsupportedAlgorithm):
        return False
    return True
