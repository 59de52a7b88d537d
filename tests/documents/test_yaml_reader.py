"""The one reader of YAML: what it reads, and what it refuses before it is built."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost import YamlError, YamlLimits, read_yaml
from tests.support.measuring import count_lines, each

LIMITS = YamlLimits(size=100_000, depth=16, nodes=10_000, weight=1_000_000)


def nested_aliases(levels: int, member: str = "[{}]") -> str:
    """Return YAML with ten aliases of ten aliases, and so on."""
    lines = ["- &a0 {x: 1}"]
    for level in range(1, levels):
        ten = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"- &a{level} {member.format(ten)}")
    return "\n".join(lines)


READ_TEXTS = [
    ("", None),
    ("# nothing", None),
    ("a: 1", {"a": 1}),
    (b"\xef\xbb\xbfa: 1", {"a": 1}),
    ("[~, null, '', true, False, TRUE]", [None, None, "", True, False, True]),
    ("[on, yes, NO, 2024-01-01, 12:30:45, =]", ["on", "yes", "NO", "2024-01-01", "12:30:45", "="]),
    ("[010, 0x10, 0o10, 1_000, +1, -0]", ["010", "0x10", "0o10", "1_000", 1, 0]),
    ("[1.5, .5, 5., 1e3, -1.5e-3, '1']", [1.5, 0.5, 5.0, 1000.0, -0.0015, "1"]),
    ("[1e999, .inf, .nan]", ["1e999", ".inf", ".nan"]),
    ("[9223372036854775807, -9223372036854775808]", [2**63 - 1, -(2**63)]),
    ("9223372036854775808", "9223372036854775808"),
    ("9" * 5_000, "9" * 5_000),
    ("{1: a, true: b, ~: c, 2.50: d}", {"1": "a", "true": "b", "~": "c", "2.50": "d"}),
    ("{&k key: 1, other: *k}", {"key": 1, "other": "key"}),
    ("[&a {b: 1}, *a, *a]", [{"b": 1}] * 3),
    ("&a [&a 1, *a]", [1, 1]),
    ("- &b {a: 1, b: 2}\n- {<<: *b, b: 3, c: 4}", [{"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}]),
    ("{<<: [{a: 1}, {a: 2, b: 2}]}", {"a": 1, "b": 2}),
    ("{'<<': {a: 1}}", {"<<": {"a": 1}}),
    ("a: |\n  one\n  two\n", {"a": "one\ntwo\n"}),
    ("%YAML 1.1\n--- {a: yes}", {"a": "yes"}),
    ("[" * 16 + "]" * 16, json.loads("[" * 16 + "]" * 16)),
    ("? a\n: b", {"a": "b"}),
]
REFUSED_TEXTS = [
    ("what is no YAML", "a: [", "is not valid YAML at line"),
    ("a control character", "a: \0", "is not valid YAML"),
    ("bytes that are no text", b"a: \xff", "not valid Unicode"),
    ("half a character", "a: \ud800", "not valid Unicode"),
    ("half a character, escaped", 'a: "\\ud800"', "not valid"),
    ("a %TAG line", "%TAG ! tag:example.com,2026:\n---\na: 1", "has a %TAG line"),
    ("a %TAG line behind a mark", "\ufeff%TAG ! tag:a\n---\na: 1", "has a %TAG line"),
    ("a %TAG line in UTF-16", "# a\r%TAG ! tag:a\r---\ra: 1".encode("utf-16"), "has a %TAG line"),
    ("a %TAG line at a rare break", "# a\u2028%TAG ! tag:a\n---\na: 1", "has a %TAG line"),
    ("two documents", "a: 1\n---\nb: 1", "several YAML documents"),
    ("a Python object", "!!python/object/apply:os.system [id]", "has the YAML tag"),
    ("a Python name", "a: !!python/name:os.system", "has the YAML tag"),
    ("a standard tag", "a: !!binary aGk=", "has the YAML tag"),
    ("a text by its tag", "a: !!str 1", "has the YAML tag"),
    ("a tag of its own", "a: !include /etc/passwd", "has the YAML tag"),
    ("the tag of no kind", "a: ! b", "has the YAML tag"),
    ("a tag that is a prefix", "%TAG ! tag:yaml.org,2002:python/\n--- !none x", "has a %TAG line"),
    ("a tag of a mapping", "a: !!set {b}", "has the YAML tag"),
    ("a tag of a list", "a: !!omap [b: 1]", "has the YAML tag"),
    ("a tag of a key", "!!binary aGk=: 1", "has the YAML tag"),
    ("brackets", "[" * 20_000, "deeper than 16 levels"),
    ("one bracket too many", "[" * 17 + "]" * 17, "deeper than 16 levels"),
    ("braces", "{a: " * 20_000, "deeper than 16 levels"),
    ("dashes", "- " * 20_000, "deeper than 16 levels"),
    ("questions", "? " * 20_000, "as a key"),
    ("a list as a key", "? [a]\n: b", "as a key"),
    ("a mapping as a key", "{{a: 1}: b}", "as a key"),
    ("a list as a key by its alias", "- &a [b]\n- {*a : c}", "as a key"),
    ("a key that stands twice", "{a: 1, b: 2, a: 3}", "the key 'a' twice"),
    ("a key that stands twice in two forms", "{1: a, '1': b}", "the key '1' twice"),
    ("a key and its alias", "{&k a: 1, *k : 2}", "the key 'a' twice"),
    ("two merges", "{<<: {a: 1}, <<: {b: 1}}", "the key '<<' twice"),
    ("an alias of nothing", "*a", "no anchor"),
    ("an alias of itself", "&a [*a]", "no anchor"),
    ("a merged text", "{<<: a}", "merges (`<<`) a value that is not"),
    ("a merged list of lists", "{<<: [[a]]}", "merges (`<<`) a value that is not"),
    ("a billion laughs", nested_aliases(10), "too large"),
    ("a billion laughs in mappings", nested_aliases(10, "{{x: [{}]}}"), "too large"),
    ("a billion merges", nested_aliases(10, "{{<<: [{}]}}"), "too large"),
    ("many values", "[" + "1," * 10_000 + "]", "too large"),
    ("many keys", "{" + ",".join(f"k{n}" for n in range(5_001)) + "}", "too large"),
    ("a long text many times", f"- &a {'x' * 50_000}\n" + "- *a\n" * 20, "too large"),
    ("a long key many times", f"- ? &a {'x' * 50_000}\n" + "- {*a : 1}\n" * 20, "too large"),
    ("a huge scalar", "x" * 100_001, "longer than 100000"),
    ("a huge scalar in bytes", b"x" * 100_001, "longer than 100000"),
]


@each(("text", "value"), READ_TEXTS, ids=[repr(text)[:60] for text, _ in READ_TEXTS])
def test_yaml_is_read_as_json_values(text: str | bytes, value: object) -> None:
    """YAML 1.2's core schema: what YAML 1.1 alone takes for a date or a truth value is text."""
    read = read_yaml(text, LIMITS)

    assert (read, json.loads(json.dumps(read))) == (value, value)
    assert type(read) is type(value)


@each(
    ("text", "expected_text"),
    [row[1:] for row in REFUSED_TEXTS],
    ids=[row[0] for row in REFUSED_TEXTS],
)
def test_harmful_yaml_is_refused(text: str | bytes, expected_text: str) -> None:
    """No code runs, and no value exceeds the limits."""
    with pytest.raises(YamlError) as raised:
        read_yaml(text, LIMITS)

    assert expected_text in str(raised.value)
    assert len(str(raised.value)) < 200


@each(
    ("text", "nearest"),
    [
        ("9223372036854775808", 2.0**63),
        ("-1" + "0" * 30, -1e30),
        (".nan", ".nan"),
        ("{1: a}", {"1": "a"}),
    ],
)
def test_values_that_json_cannot_express_are_approximated_or_refused(
    text: str, nearest: object
) -> None:
    """Schema bounds are approximated; values that are passed on are refused."""
    assert read_yaml(text, LIMITS, inexact="nearest") == nearest
    with pytest.raises(YamlError, match="which"):
        read_yaml(text, LIMITS, inexact="refused")


@pytest.mark.parametrize("text", [".inf", "-.INF", ".NaN", "1e999", "{.nan: 1}", "{~: 1}"])
def test_no_spelling_of_nan_or_infinity_is_passed_on(text: str) -> None:
    """They are refused as values and as keys."""
    with pytest.raises(YamlError, match="which"):
        read_yaml(text, LIMITS, inexact="refused")


def test_a_merge_key_is_a_plain_name_if_merging_is_off() -> None:
    """Obsidian does not merge."""
    assert read_yaml("{<<: {a: 1}}", LIMITS, merges=False) == {"<<": {"a": 1}}
    with pytest.raises(YamlError, match="twice"):
        read_yaml("{<<: {a: 1}, <<: {b: 1}}", LIMITS, merges=False)


def test_an_error_counts_lines_from_the_given_first_line() -> None:
    """In a note the first line is above the front matter."""
    with pytest.raises(YamlError, match="at line 3"):
        read_yaml("a: 1\nb: @", LIMITS, first_line=2)


@pytest.mark.parametrize(
    "pattern", ["{{<<: [{}]}}", "[{}]"], ids=["merged mappings", "a list of mappings"]
)
def test_reading_yaml_takes_linear_time(pattern: str) -> None:
    """A merge that copied its mapping would take quadratic time."""

    def work(count: int) -> int:
        text = pattern.format(",".join(f"{{k{n}: 1}}" for n in range(count)))
        return count_lines(lambda: read_yaml(text, LIMITS))

    assert work(2_000) < work(1_000) * 3


@pytest.mark.parametrize("levels", [5, 9])
def test_a_larger_yaml_bomb_takes_no_more_work(levels: int) -> None:
    """It is refused at the first expansion beyond the limits."""

    def work(levels: int) -> int:
        def refused() -> None:
            with pytest.raises(YamlError):
                read_yaml(nested_aliases(levels), LIMITS)

        return count_lines(refused)

    assert work(levels) < work(5) * 1.5


TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
FLOAT_VALUES = st.floats(allow_nan=False, allow_infinity=False)
YAML_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | FLOAT_VALUES | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=20,
)


@given(YAML_VALUES)
def test_every_json_text_is_yaml(value: object) -> None:
    """It has the same value."""
    assert read_yaml(json.dumps(value), LIMITS) == value
