"""docs/secrets.md says what there is, and its example works."""

import re
from pathlib import Path
from typing import Any

from click import Group

from gatepost.cli.secrets import secrets
from gatepost.secrets.names import MAX_BYTES, MAX_SECRETS, MIN_CHARACTERS

PAGE = (Path(__file__).parents[2] / "docs/secrets.md").read_text(encoding="utf-8")


def test_the_example_of_the_page_is_a_tool_with_a_secret_argument() -> None:
    """The code runs as printed."""
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "example"}
    exec(code, names)  # noqa: S102  # our own page

    assert names["pack"].tools["count_issues"].secret_arguments == (("token",),)


def test_every_command_and_limit_is_on_the_page() -> None:
    """The page names no command that does not exist."""
    assert isinstance(secrets, Group)
    documented = set(re.findall(r"gatepost secrets (\w+)", PAGE))

    assert documented == set(secrets.commands)
    assert f"of {MIN_CHARACTERS} characters to {MAX_BYTES // 1024} KiB" in PAGE
    assert f"at most {MAX_SECRETS:,} secrets" in PAGE
