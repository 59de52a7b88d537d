"""Find out whether redaction has hidden anything but secrets, which the reader would miss."""

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
MAX_KEYS = 8
"""Each takes about a millisecond to parse."""
_LINES = re.compile(
    r"-----BEGIN [A-Z0-9 ]+-----\n(?:[^\n]{64,76}\n)*[^\n]{1,76}\n-----END [A-Z0-9 ]+-----"
)


def hides_words(arguments: bytes, shown_arguments: bytes) -> bool:
    """
    Return whether a redacted private key in *shown_arguments* is something else.

    It is the only secret pattern that matches words and lines. A caller could put text between the
    begin and end lines, which the approver would not see although the tool gets it.
    """
    originals, shown_texts = list(_leaves(arguments)), list(_leaves(shown_arguments))
    if len(originals) != len(shown_texts):
        return True
    hidden = [
        part
        for original, shown_text in zip(originals, shown_texts, strict=True)
        if original != shown_text and f":{KEY}]" in str(shown_text)
        for part in _parts(str(original), str(shown_text))
    ]
    return len(hidden) > MAX_KEYS or not all(map(_is_key, hidden))


def hides_arguments(arguments: bytes, before: bytes, after: bytes, secrets: Sequence[str]) -> bool:
    """
    Return whether the values of secret arguments, *secrets*, hide anything but those arguments.

    *before* and *after* are the shown arguments without and with these values redacted. A caller
    that uses an address as a password too would have the address redacted in both places.
    """
    remaining_secrets = Counter(secrets)
    triples = zip(_leaves(arguments), _leaves(before), _leaves(after), strict=True)
    for original, before_text, after_text in triples:
        if before_text == after_text:
            continue
        if not remaining_secrets[str(original)]:
            return True
        remaining_secrets[str(original)] -= 1
    return False


def _leaves(encoded: bytes) -> Iterator[Any]:
    """Yield names and values in their order, repeated names included."""
    stack: list[Any] = [json.loads(encoded, object_pairs_hook=list)]
    while stack:
        node = stack.pop()
        if isinstance(node, list | tuple):
            stack.extend(reversed(node))
        else:
            yield node


def _parts(original: str, shown_text: str) -> Iterator[str]:
    """Yield at least the parts of *original* that were redacted as keys."""
    pieces = MARKED.split(shown_text)
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
        return True  # a key with a password
    except (ValueError, UnsupportedAlgorithm):
        return False
    return True
