"""docs/settings.md and the settings say the same, in both directions."""

from gatepost.config.environment import variables
from tests.docs.settings_page import PAGE, names, page, settings


def headings() -> list[str]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("### ") for line in lines if line.startswith("### ")]


def test_every_setting_has_a_heading_and_every_heading_a_setting() -> None:
    """Nobody sets what is not described, or looks for what is gone."""
    assert sorted(headings()) == sorted(names())


def test_the_page_is_what_the_docstrings_say() -> None:
    """After a change: `python -m tests.docs.settings_page`."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_setting_says_what_it_means() -> None:
    """A docstring under each field, with something in it."""
    assert [name for name, meaning, _ in settings() if len(meaning) < 10] == []


def test_every_plain_setting_has_a_variable() -> None:
    """`listen.port` is GATEPOST_LISTEN__PORT, for each that is no member of a list or a table."""
    plain = {name for name in names() if not any(name.startswith(f"{one}.") for one in names())}

    assert {f"GATEPOST_{name}".replace(".", "__").upper() for name in plain} == set(variables())
