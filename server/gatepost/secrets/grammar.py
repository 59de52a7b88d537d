"""Which names and values secrets may have."""

import re

NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}", re.ASCII)
"""What an operator sets and an agent names."""
INNER_NAME = re.compile(r"[a-z][a-z0-9_]{0,199}", re.ASCII)
"""What a pack keeps: nothing an agent can write means one of them."""
LEAST_CHARACTERS = 8
MOST_BYTES = 65_536
MOST_SECRETS = 1_000
"""Of one tenant, its packs' included: every answer is searched for all of them."""


class SecretRefused(ValueError):
    """A name or a value that cannot be a secret's; the sentence holds nothing of a value."""


def checked_name(name: str) -> str:
    """*name*, if an operator may give it; raises SecretRefused."""
    if not NAME.fullmatch(name):
        # Not repeated: who mistakes the order of things has written the value here.
        raise SecretRefused(
            "the name of a secret begins with a capital letter, and has at most 64 of A-Z, 0-9, _"
        )
    return name


def checked_value(value: str) -> str:
    """*value*, if it can be kept out of answers; raises SecretRefused."""
    if len(value) < LEAST_CHARACTERS:
        raise SecretRefused(
            f"the value has {len(value)} characters; of fewer than {LEAST_CHARACTERS} every answer "
            "may hold some by chance, and all of these would be taken out"
        )
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise SecretRefused("the value is no text in UTF-8") from None
    if size > MOST_BYTES:
        raise SecretRefused(f"the value has {size} bytes and may have {MOST_BYTES}")
    return value
