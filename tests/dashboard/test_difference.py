"""What a call would change in a text."""

from hypothesis import given
from hypothesis import strategies as st

from gatepost.dashboard.difference import MAX_LINES, ComparisonLimit, difference


def lines_of(before: str, after: str, context: int = 3) -> list[str]:
    signs = {"same": " ", "gone": "-", "new": "+", "gap": "…"}
    rows = difference(before, after, context=context).rows
    return [signs[row.kind] + (row.text or str(row.count or "")) for row in rows]


def test_changed_lines_are_shown_with_context_lines() -> None:
    """Lines far from any change are shown as a gap."""
    before = "\n".join(f"line {at}" for at in range(12))
    after = before.replace("line 6", "line six")

    assert lines_of(before, after, 1) == ["…5", " line 5", "-line 6", "+line six", " line 7", "…4"]
    diff = difference(before, after)
    assert (diff.removed, diff.new) == (1, 1)


def test_a_line_ends_only_at_a_newline() -> None:
    """Another line separator in a comment must not look like a new line of code."""
    assert lines_of("# a\u2028evil()", "# a\u2028good()") == [
        "-# a\u2028evil()",
        "+# a\u2028good()",
    ]
    assert lines_of("a\rb", "a\rc") == ["-a\rb", "+a\rc"]


def test_equal_texts_have_no_difference() -> None:
    """The page says so instead of showing an empty table."""
    assert difference("a\nb", "a\nb").is_none
    assert not difference("a", "b").is_none


def test_texts_with_too_many_lines_are_not_compared() -> None:
    """The time grows with the square of the lines, without those that both begin or end with."""
    many = "\n".join(map(str, range(MAX_LINES + 2)))
    assert difference(many, many.replace("\n", "x\n")).too_long
    long = "\n".join(map(str, range(50_000)))
    assert (difference(long, long + "\nlast").new, difference(long, "first\n" + long).new) == (1, 1)


def test_several_texts_share_one_limit_of_comparison_steps() -> None:
    """An upstream could change all of its tools so that each comparison takes the maximum."""
    half, limit = MAX_LINES // 2, ComparisonLimit()
    old = "\n".join(map(str, range(half)))
    new = old.replace("\n", "x\n") + "x"
    results = [difference(old, new, limit=limit).too_long for _ in range(6)]
    assert results == [False] * 4 + [True] * 2
    assert not difference("a", "a\nb", limit=limit).too_long


@given(st.lists(st.sampled_from("abc")), st.lists(st.sampled_from("abc")), st.integers(0, 3))
def test_both_texts_can_be_restored_from_the_difference(
    old: list[str], new: list[str], context: int
) -> None:
    """The numbered lines are those of the texts, and the counts add up."""
    diff = difference("\n".join(old), "\n".join(new), context=context)
    before, after = "\n".join(old).split("\n"), "\n".join(new).split("\n")
    if not before[-1] and not after[-1]:
        before, after = before[:-1], after[:-1]  # behind the last line feed there is no line
    gaps = sum(row.count for row in diff.rows)
    unchanged = [row for row in diff.rows if row.kind == "same"]

    for row in diff.rows:
        assert not row.before or before[row.before - 1] == row.text
        assert not row.after or after[row.after - 1] == row.text
    assert len(before) == len(unchanged) + diff.removed + gaps
    assert len(after) == len(unchanged) + diff.new + gaps
