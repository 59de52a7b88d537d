"""Charts as numbers to draw by, and what is said of times and amounts."""

import pytest

from gatepost.dashboard import chart, formats
from gatepost.dashboard.grant_form import GrantFormPart, grant_form_of


def test_columns_are_stacked_to_scale() -> None:
    """The height is proportional to the calls, and the axis ends at a round number."""
    intervals = [chart.ChartInterval(0, (30, 10)), chart.ChartInterval(3_600, (0, 0))]
    drawn = chart.columns(intervals, ("answered", "failed"), step_s=3_600)
    first, second = drawn.columns

    assert [level.label for level in drawn.levels] == ["0", "10", "20", "30", "40"]
    assert [part.kind for part in first.parts] == ["answered", "failed"]
    assert first.parts[0].y + first.parts[0].height == drawn.bottom
    assert first.parts[1].y == chart.TOP
    assert second.parts == ()
    assert (drawn.total, drawn.totals) == (40, (30, 10))
    assert first.title == "1 Jan 00:00: 30 answered, 10 failed"
    assert second.title == "1 Jan 01:00: no calls"


@pytest.mark.parametrize(
    ("most", "top"), [(0, 4), (3, 4), (5, 6), (9, 10), (11, 20), (41, 60), (850, 1_000)]
)
def test_an_axis_ends_at_a_round_number(most: int, top: int) -> None:
    """The end is not below the highest column."""
    assert chart.ceiling(most) == top
    assert chart.levels(top)[-1] == top


def test_a_meter_stays_between_zero_and_one() -> None:
    """The usage may exceed the limit, and the limit may be zero."""
    shares = [
        chart.UsageMeter(label="", used=u, maximum=m).share for u, m in ((5, 10), (20, 10), (1, 0))
    ]
    assert shares == [0.5, 1.0, 0.0]


@pytest.mark.parametrize(
    ("seconds", "remaining_text", "since"),
    [
        (-1, "time is up", "just now"),
        (9.9, "0:09", "just now"),
        (75, "1:15", "1 min ago"),
        (3_700, "1 h 01 min", "1 h ago"),
        (200_000, "2 days", "2 days ago"),
    ],
)
def test_remaining_and_past_times_are_formatted_for_people(
    seconds: float, remaining_text: str, since: str
) -> None:
    """One function formats the time left, the other the time since."""
    assert (formats.span(seconds), formats.ago(seconds)) == (remaining_text, since)


def test_amounts_have_their_plural() -> None:
    """One line, two lines, three entries."""
    amounts = [formats.amount(*pair) for pair in ((1, "line"), (2_000, "line"), (3, "entry"))]
    assert amounts == ["1 line", "2,000 lines", "3 entries"]


GRANT_FORMS = [
    ({}, None),
    ({"grant": "3600"}, (4_600, None, None)),
    ({"uses": "5"}, (None, 5, None)),
    ({"grant": "900", "uses": "2", "pattern": "any"}, (1_900, 2, "true")),
    ({"grant": "900", "pattern": "condition", "condition": "a < 1"}, (1_900, None, "a < 1")),
]


@pytest.mark.parametrize(("form", "granted"), GRANT_FORMS, ids=str)
def test_a_grant_form_is_read_as_expiry_uses_and_condition(
    form: dict[str, str], granted: tuple[object, ...] | None
) -> None:
    """Without a choice no grant is given."""
    grant_form = grant_form_of(form)
    text = grant_form.granted(1_000)

    assert not grant_form.has_errors
    assert (None if text is None else (text.until, text.uses, text.when)) == granted


@pytest.mark.parametrize(
    "form",
    [
        {"grant": "forever"},
        {"uses": "0"},
        {"uses": "-1"},
        {"uses": "1.5"},
        {"uses": "99999999999999999999"},
        {"uses": "٣"},
        {"pattern": "any"},
        {"grant": "900", "pattern": "condition"},
    ],
    ids=str,
)
def test_an_incomplete_or_invalid_grant_form_is_an_error(form: dict[str, str]) -> None:
    """A grant never covers more than the approver entered."""
    assert grant_form_of(form).has_errors
    assert grant_form_of(form) != GrantFormPart()
