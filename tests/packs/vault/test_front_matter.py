"""Front matter is read as JSON, however it was meant, and changed without touching the rest."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost_packs.vault.front_matter import MAX_BYTES, FrontMatterError, merged, split
from tests.support.measuring import REFERENCE_S, count_lines, each, slowness

READABLE_NOTES = [
    ("---\na: 1\n---\ntext", {"a": 1}, "text"),
    ("---\r\na: 1\r\n---\r\ntext", {"a": 1}, "text"),
    ("\ufeff---\na: ü\n---\n", {"a": "ü"}, ""),
    ("---\n---\ntext", {}, "text"),
    ("---\na: 1\n---", {"a": 1}, ""),
    ("--- \na: [x, 2, true, null, 1.5]\n---\t\n", {"a": ["x", 2, True, None, 1.5]}, ""),
    ("---\nday: 2024-01-31\n---\n", {"day": "2024-01-31"}, ""),
    ("---\n2: a\ntrue: b\n---\n", {"2": "a", "true": "b"}, ""),
    ("---\na: .nan\nb: -.inf\n---\n", {"a": ".nan", "b": "-.inf"}, ""),
    (
        "---\nat: 12:30\nok: yes\nzip: 01234\n---\n",
        {"at": "12:30", "ok": "yes", "zip": "01234"},
        "",
    ),
    ("---\na: 99999999999999999999999\n---\n", {"a": "99999999999999999999999"}, ""),
    ("---\na: &x [1]\nb: *x\n---\n", {"a": [1], "b": [1]}, ""),
    ("---\n# nothing\n---\ntext", {}, "text"),
    ("---\na: 1\n", None, "---\na: 1\n"),
    ("text\n---\na: 1\n---\n", None, "text\n---\na: 1\n---\n"),
    ("----\na: 1\n----\n", None, "----\na: 1\n----\n"),
    ("", None, ""),
]


@pytest.mark.requirement("P5")
@each(("text", "values", "body"), READABLE_NOTES, ids=[repr(r[0])[:40] for r in READABLE_NOTES])
def test_front_matter_is_the_text_between_two_dashed_lines(
    text: str, values: dict[str, object] | None, body: str
) -> None:
    """As in Obsidian; without the second line there is no front matter."""
    matter = split(text)

    assert (matter.values, matter.body, matter.problem) == (values, body, None)
    assert matter.raw + matter.body == text


HOSTILE_HEADS = [
    ("not YAML", "a: [", "is not valid YAML at line "),
    ("a list", "- a", "does not consist of names and values"),
    ("a word", "word", "does not consist of names and values"),
    ("a Python object", "a: !!python/object/apply:os.system [id]", "has the YAML tag"),
    ("any tag", "a: !!binary aGk=", "has the YAML tag"),
    ("a tag of its own", "a: !x 1", "has the YAML tag"),
    ("brackets that would overflow the stack", "a: " + "[" * 20_000, "is nested deeper than 16"),
    ("dashes that would overflow the stack", "- " * 20_000, "is nested deeper than 16"),
    ("questions that would overflow the stack", "? " * 20_000, "as a key"),
    (
        "a billion laughs",
        "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
        + "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)),
        "too large with its YAML aliases",
    ),
    ("an anchor that holds itself", "a: &a [*a]", "has no anchor"),
    ("a key that is a list", "? [a]\n: b", "as a key"),
    ("a null byte", "a: \0", "is not valid YAML"),
]


@pytest.mark.requirement("P5")
@each(("yaml", "expected_text"), [h[1:] for h in HOSTILE_HEADS], ids=[h[0] for h in HOSTILE_HEADS])
def test_unreadable_front_matter_is_part_of_the_text(yaml: str, expected_text: str) -> None:
    """The note is kept whole, and the model gets the reason."""
    text = f"---\n{yaml}\n---\nbody"
    matter = split(text)

    assert (matter.values, matter.body) == (None, text)
    assert matter.problem is not None
    assert matter.problem.startswith("The front matter ")
    assert expected_text in matter.problem


@pytest.mark.requirement("P5")
def test_a_front_matter_that_is_too_long_is_text() -> None:
    """A front matter beyond the limit is not parsed."""
    text = f"---\na: {'x' * MAX_BYTES}\n---\nbody"

    assert split(text).values is None
    assert split(text).body == text


@pytest.mark.requirement("P5")
def test_an_unclosed_front_matter_is_not_searched_to_the_end() -> None:
    """An end that never comes is not looked for in all of it."""
    short = "---\n" + "a: b\n" * 20_000
    long = "---\n" + "a: b\n" * 200_000

    assert count_lines(lambda: split(long)) == count_lines(lambda: split(short))


NOTE_BEFORE = (
    "---\n# who\nname: Ada  # of course\n\ntags:\n  - a\n  - b\nday: 2024-01-31\n---\nbody"
)

CHANGES = [
    ({}, NOTE_BEFORE[:-4]),
    (
        {"name": "Bob"},
        "---\n# who\nname: Bob\n\ntags:\n  - a\n  - b\nday: 2024-01-31\n---\n",
    ),
    (
        {"tags": ["c"]},
        "---\n# who\nname: Ada  # of course\n\ntags:\n- c\nday: 2024-01-31\n---\n",
    ),
    ({"tags": None}, "---\n# who\nname: Ada  # of course\n\nday: 2024-01-31\n---\n"),
    (
        {"new": {"x": [1, None]}, "day": "2024-02-01"},
        "---\n# who\nname: Ada  # of course\n\ntags:\n  - a\n  - b\nday: 2024-02-01\n"
        "new:\n  x:\n  - 1\n  - null\n---\n",
    ),
    ({"gone": None}, NOTE_BEFORE[:-4]),
]


@pytest.mark.requirement("P5")
@pytest.mark.parametrize(("changes", "after"), CHANGES, ids=[str(c[0]) for c in CHANGES])
def test_unchanged_properties_keep_their_text(changes: dict[str, object], after: str) -> None:
    """Comments, order and spelling stay; null removes a property."""
    assert merged(split(NOTE_BEFORE), changes) == after


@pytest.mark.requirement("P5")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("body", "---\na: 1\n---\n"),
        ("---\n---\n", "---\na: 1\n---\n"),
        ("---\n{b: 2, c: 3}\n---\n", "---\nb: 2\nc: 3\na: 1\n---\n"),
        ("---\n? b\n: 2\n---\n", "---\nb: 2\na: 1\n---\n"),
        ("---\r\nb: 2\r\n---\r\n", "---\r\nb: 2\r\na: 1\r\n---\r\n"),
        ("---\nb: &x 1\nc: *x\n---\n", "---\nb: &x 1\nc: *x\na: 1\n---\n"),
        (f"---\nb: {-(1 << 63)} # least\n---\n", f"---\nb: {-(1 << 63)} # least\na: 1\n---\n"),
    ],
    ids=repr,
)
def test_a_property_is_added_to_any_front_matter(before: str, after: str) -> None:
    """If lines cannot be kept, the values are."""
    assert merged(split(before), {"a": 1}) == after


@pytest.mark.requirement("P5")
@pytest.mark.parametrize(
    ("before", "changes"),
    [
        ("---\na: [\n---\n", {"b": 1}),
        ("", {"a": "x" * MAX_BYTES}),
        ("", {"a": [[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]}),
        ("", {"a": list(range(20_000))}),
    ],
    ids=["not YAML", "too long", "too deep", "too much"],
)
def test_a_change_that_could_not_be_read_again_is_refused(
    before: str, changes: dict[str, object]
) -> None:
    """A note is never made worse."""
    with pytest.raises(FrontMatterError):
        merged(split(before), changes)


YAML_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.requirement("P5")
@given(
    before=st.dictionaries(st.text(max_size=8), YAML_VALUES, max_size=4),
    changes=st.dictionaries(st.text(max_size=8), YAML_VALUES, max_size=4),
)
def test_written_properties_are_read_back(
    before: dict[str, object], changes: dict[str, object]
) -> None:
    """This holds for all JSON values, unless the change is refused."""
    try:
        first = merged(split(""), before)
        second = merged(split(first), changes)
    except FrontMatterError:
        return
    expected = {k: v for k, v in {**before, **changes}.items() if v is not None}

    assert (split(second).values or {}) == {k: v for k, v in expected.items() if v is not None}


def test_changes_that_cannot_fit_are_refused_before_they_are_written_as_yaml() -> None:
    """YAML takes a second for each megabyte."""
    spent = float("inf")
    for _ in range(3):
        began = time.process_time()
        with pytest.raises(FrontMatterError, match="more than 64000 bytes"):
            merged(split(""), {"a": "a" * 3_950_000})
        spent = min(spent, time.process_time() - began)
    assert spent < REFERENCE_S * slowness()
