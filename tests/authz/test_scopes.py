"""Reading scopes and what they imply."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost_authz.errors import InvalidToken
from gatepost_authz.scopes import Implications, parse
from tests.support.measuring import each


@pytest.mark.requirement("C22")
@pytest.mark.parametrize(
    ("text", "scopes"),
    [
        ("", set()),
        (" ", set()),
        ("a", {"a"}),
        ("a  b", {"a", "b"}),
        ("b a b", {"a", "b"}),
        ("admin administrator", {"admin", "administrator"}),
        ("a,b", {"a,b"}),
        ("https://api.example/a.read !#[]^_`{|}~", {"https://api.example/a.read", "!#[]^_`{|}~"}),
    ],
)
def test_scopes_are_separated_by_spaces_only(text: str, scopes: set[str]) -> None:
    """A comma is part of a scope, and a scope never matches a part of another one."""
    assert parse(text) == scopes


@pytest.mark.requirement("C22")
@each(
    "text",
    [
        *("a\tb", "a\nb", 'a"', "a\\b", "\u00e4", "a\0", "a\u2003b"),
        *("x" * 257, "a " + "y" * 257, " ".join(f"s{n}" for n in range(257)), "x " * 40_000),
    ],
    ids=lambda text: repr(text)[:12],
)
def test_invalid_characters_and_too_many_scopes_are_refused(text: str) -> None:
    """RFC 6749 section 3.3 lists the characters; the count has a fixed limit."""
    with pytest.raises(InvalidToken):
        parse(text)


words = st.sampled_from("abcdefg")


@given(st.dictionaries(words, st.lists(words, max_size=3)), st.frozensets(words))
def test_scope_implications_are_transitive(
    implied: dict[str, list[str]], granted: frozenset[str]
) -> None:
    """The expansion ends for cycles and removes no granted scope."""
    reached = set(granted)
    for _ in range(10):
        reached |= {other for scope in reached for other in implied.get(scope, [])}

    assert Implications(implied).expand(granted) == reached
