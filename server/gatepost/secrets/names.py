"""Check names and values of secrets."""

import re

NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}", re.ASCII)
"""The names of secrets that operators set and agents use."""
REFERENCE_PREFIX = "secret:"
"""Begins a reference to a tenant's secret, `secret:NAME`, in settings and arguments."""
INNER_NAME = re.compile(r"[a-z][a-z0-9_]{0,199}", re.ASCII)
"""The names of secrets that packs store; agents cannot write them."""
MIN_CHARACTERS = 8
MAX_BYTES = 65_536
MAX_SECRETS = 1_000
"""The maximum number of secrets of one tenant, including those of packs."""


class SecretRefused(ValueError):
    """Raised for an invalid name or value; the message never contains the value."""


def is_reference(text: str) -> bool:
    """Return whether *text* is `secret:NAME`, with a name that a tenant's secret can have."""
    return text.startswith(REFERENCE_PREFIX) and bool(
        NAME.fullmatch(text.removeprefix(REFERENCE_PREFIX))
    )


def checked_name(name: str) -> str:
    """Return *name* if it is valid for an operator's secret; raise SecretRefused."""
    if not NAME.fullmatch(name):
        # Not repeated: an operator who confuses the order of the arguments has written the value
        # here.
        raise SecretRefused(
            "the name of a secret begins with a capital letter, and has at most 64 of A-Z, 0-9, _"
        )
    return name


def checked_value(value: str, *, username: bool = False) -> str:
    """Return *value* if it can be redacted or is a user name; raise SecretRefused."""
    if not value and username:
        raise SecretRefused("the value is empty")
    if len(value) < MIN_CHARACTERS and not username:
        raise SecretRefused(
            f"the value has {len(value)} characters. Shorter secrets than {MIN_CHARACTERS} occur "
            "in answers by chance, and each occurrence would be redacted. A user name may be "
            "shorter: --username"
        )
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise SecretRefused("the value is no text in UTF-8") from None
    if size > MAX_BYTES:
        raise SecretRefused(f"the value has {size} bytes and may have {MAX_BYTES}")
    return value
