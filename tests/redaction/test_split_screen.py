"""A secret that is split over the strings of a long text is found however it was split."""

import gc
import json
from collections.abc import Iterator
from itertools import combinations, pairwise, product
from weakref import WeakSet

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.redaction import redactor as redactor_module
from gatepost.redaction.json_document import cleaned
from gatepost.redaction.redactor import Redactor, cleaned_text
from gatepost.redaction.screen import STEP_BYTES
from gatepost.redaction.split_screen import SplitScreen
from tests.support.measuring import count_lines, each

ROW = {"id": 12345, "name": "A row of a table", "tags": ["a", "b"], "total": 12.5}
TABLE = json.dumps([ROW] * 15)
SHORT_SECRET = "kL3-mN7_q"
SEPARATORS = {
    "a list": '", "',
    "a list over lines": '",\n    "',
    "a Python list": "', '",
    "members": '", "name": "',
    "a sum": '" + "',
    "members of a Python dict": "', 'name': '",
    "numbers between": '", 12, true, "',
}


def all_splits(value: str) -> Iterator[list[str]]:
    """Yield the pieces of a value for every way to cut it."""
    for many in range(1, len(value)):
        for cuts in combinations(range(1, len(value)), many):
            yield [value[start:end] for start, end in pairwise((0, *cuts, len(value)))]


@pytest.mark.requirement("P13")
@each("gap", SEPARATORS, ids=str)
def test_every_way_to_cut_a_secret_is_found(gap: str) -> None:
    """Into single bytes, too, and where the outer pieces are the ends of longer strings."""
    redactor, between = Redactor({"KEY": SHORT_SECRET}), SEPARATORS[gap]
    quote = between[0]
    for pieces in all_splits(SHORT_SECRET):
        for before, behind in (("", ""), ("left", "right")):
            planted = f"[{quote}{before}{between.join(pieces)}{behind}{quote}]"

            clean = cleaned_text(f"{TABLE}, {planted}", redactor)

            assert clean.startswith(TABLE)
            assert clean.count("[REDACTED:KEY]") == len(pieces), pieces


@pytest.mark.requirement("P13")
def test_every_way_to_cut_a_secret_into_strings_and_numbers_is_found() -> None:
    """Digits of the secret may be numbers."""
    secret = "a12-b345c6"
    redactor = Redactor({"KEY": secret})
    for pieces in all_splits(secret):
        leaves = [piece if piece.isdigit() else json.dumps(piece) for piece in pieces]

        clean = cleaned_text(f"{TABLE}, [{', '.join(leaves)}]", redactor)

        assert clean.count("[REDACTED:KEY]") == len(pieces), pieces


@pytest.mark.requirement("P13")
@each("secret", ["pass", "jklm"], ids=str)
@each("mark", [":", " "], ids=str)
def test_every_way_to_cut_hexadecimal_digits_is_found(secret: str, mark: str) -> None:
    """The marks between them may be strings of their own, and compact JSON has them as well."""
    redactor, compact = Redactor({"KEY": secret}), json.JSONEncoder(separators=(",", ":")).encode
    rows = compact([ROW] * 15)
    for pieces in all_splits(secret.encode().hex(mark)):
        clean = cleaned_text(f"{rows},{compact(pieces)}", redactor)

        assert clean.startswith(rows)
        assert clean.count("[REDACTED:KEY]") == len(pieces), pieces


@pytest.mark.requirement("P13")
@each("note", ['an inch is 1"', "two\nlines", "\0", "a \\ b", "50%"], ids=repr)
@each("secret", ["pass", "jk"], ids=str)
def test_a_secret_split_in_rows_with_escapes_is_found(note: str, secret: str) -> None:
    """What a string of the rows holds hides nothing of the strings behind it."""
    redactor, spelt = Redactor({"KEY": f"{secret}-0"}), f"{secret}-0".encode().hex(":")
    rows = [*[ROW] * 15, {"note": note}]
    for pieces in all_splits(spelt[-9:]):
        clean = cleaned(json.dumps([*rows, spelt[:-9], *pieces]).encode(), redactor)

        assert clean is not None
        assert json.loads(clean) == [*rows, *["[REDACTED:KEY]"] * (len(pieces) + 1)], pieces


@pytest.mark.requirement("P13")
def test_rows_are_not_taken_for_a_split_secret() -> None:
    """Between two strings of compact JSON is a comma or a colon, which is no string."""
    redactor = Redactor({"KEY": "kQz7vXw2pLm-production-Rt"})

    assert redactor.is_unsplit(json.dumps([ROW] * 15, separators=(",", ":")).encode())


SPREAD_SECRETS = {
    "an escape of JSON": ["secret-\\u0", "061bc-42"],
    "an escape of a program": ["secret-\\x", "61bc-42"],
    "an escape of URLs": ["secret-%6", "1bc-42"],
    "an escape of HTML": ["secret-&#9", "7;bc-42"],
    "a named escape of HTML": ["secret&hyph", "en;abc-42"],
    "a line break with its indentation": ["s\n", "    ecret-abc-42"],
    "a line break with blanks on both sides": [f"s\n{' ' * 99}", "    ecret-abc-42"],
    "an escaped backslash": ["secret-\\\\", "u0061bc-42"],
    "a backslash of URLs": ["secret-%5c", "u0061bc-42"],
}


@pytest.mark.requirement("P13")
@each("quote", ['"', "'"], ids=str)
@each("spread", SPREAD_SECRETS, ids=str)
def test_an_escape_split_over_two_strings_is_found(spread: str, quote: str) -> None:
    """A reader that joins the strings first decodes an escape that neither of them has."""
    value = "secret\u2010abc-42" if "named" in spread else "secret-abc-42"
    planted = f", {quote}".join(f"{piece}{quote}" for piece in SPREAD_SECRETS[spread])

    clean = cleaned_text(f"{TABLE}, {quote}{planted}", Redactor({"KEY": value}))

    assert clean.count("[REDACTED:KEY]") == len(SPREAD_SECRETS[spread])


@pytest.mark.requirement("P13")
@each("quote", ['"', "'"], ids=str)
def test_every_way_to_cut_a_secret_over_indented_lines_is_found(quote: str) -> None:
    """Behind a string that ends with a line break, the first blanks are an indentation."""
    redactor = Redactor({"KEY": SHORT_SECRET})
    for pieces in all_splits(SHORT_SECRET):
        for broken in ("\n", "\r\n  "):
            indented = [f"  {piece}{broken}" for piece in pieces]
            planted = ",\n  ".join(f"{quote}{piece}{quote}" for piece in indented)

            clean = cleaned_text(f"{TABLE}, [\n{planted}\n]", redactor)

            assert clean.count("[REDACTED:KEY]") == len(pieces), indented


@each("indent", [0, 1, 4], ids=str)
def test_indented_documents_are_screened(indent: int) -> None:
    """They are as usual as others; a search takes ten times as long."""
    redactor = Redactor({"KEY": SHORT_SECRET})

    assert redactor.is_unsplit(json.dumps([ROW] * 50, indent=indent).encode())


@pytest.mark.requirement("P13")
@each("spread", SPREAD_SECRETS, ids=str)
def test_an_escape_split_at_the_end_of_a_search_step_is_found(spread: str) -> None:
    """A long text is searched in steps, and any place in it may be the end of one."""
    value = "secret\u2010abc-42" if "named" in spread else "secret-abc-42"
    redactor, (begin, end) = Redactor({"KEY": value}), SPREAD_SECRETS[spread]
    for offset in range(len(begin) + 1):
        before = TABLE.ljust(STEP_BYTES - offset - 1)

        clean = cleaned_text(f'{before}"{begin}", "{end}"', redactor)

        assert clean.count("[REDACTED:KEY]") == 2, offset


@pytest.mark.requirement("P13")
@given(
    pieces=st.lists(st.sampled_from(["a", "b", "ab", "cAb", "Q", "abc-", "x1y2"]), min_size=6),
    nested=st.integers(0, 2),
)
def test_a_secret_of_any_pieces_is_found_at_every_depth(pieces: list[str], nested: int) -> None:
    """A document may be a text in a document."""
    secret = f"k{''.join(pieces)}z"
    text = json.dumps([*[ROW] * 15, "k", *pieces, "z"])
    for _ in range(nested):
        text = json.dumps({"text": text})

    assert cleaned_text(text, Redactor({"KEY": secret})) != text


@pytest.mark.requirement("P13")
def test_a_long_text_takes_no_more_steps_for_each_string_in_it() -> None:
    """A document has thousands of strings, so the cost of each one counts."""
    redactor = Redactor({"KEY": "correct-horse-battery-staple"})
    short, long = json.dumps([ROW] * 50), json.dumps([ROW] * 500)
    for text in (short, long):
        cleaned_text(text, redactor)  # what it is looked for with is kept

    assert count_lines(lambda: cleaned_text(long, redactor)) < 2 * count_lines(
        lambda: cleaned_text(short, redactor)
    )


@pytest.mark.requirement("P13")
@each("byte", sorted(SHORT_SECRET), ids=str)
def test_strings_of_one_byte_are_searched_in_linear_time(byte: str) -> None:
    """Each quotation mark may begin or end a string, and the work stays linear."""
    redactor, text = Redactor({"KEY": SHORT_SECRET}), f'"{byte}' + '",' * 20
    redactor.is_unsplit(text.encode())  # what it is looked for with is kept

    fewer = count_lines(lambda: redactor.is_unsplit(text.encode() * 300))
    more = count_lines(lambda: redactor.is_unsplit(text.encode() * 600))

    assert more < 3 * fewer


@pytest.mark.requirement("P13")
def test_secrets_with_a_common_ending_are_prepared_in_bounded_time() -> None:
    """Such secrets share few patterns, so a limit on patterns would allow any number."""
    some, many = (
        Redactor({f"KEY_{nth}": f"{nth:016}-production.example.com" for nth in range(number)})
        for number in (10, 100)
    )

    assert count_lines(lambda: many.is_unsplit(TABLE.encode())) < 2 * count_lines(
        lambda: some.is_unsplit(TABLE.encode())
    )


@pytest.mark.requirement("P13")
def test_comparisons_with_values_of_a_common_ending_are_bounded() -> None:
    """Each line of a secret is a value, and a text may repeat their common ending."""
    ending = "-production.example"
    some, many = (
        Redactor({"KEY": "\n".join(f"{nth:016}{ending}" for nth in range(number))})
        for number in (8, 80)
    )
    pieces = [ending[at : at + 3] for at in range(len(ending) - 3)]
    texts = [f'"{piece}~", '.encode() * 50 for piece in pieces]
    for redactor in (some, many):
        redactor.is_unsplit(b'"none"')  # what it is looked for with is kept

    few, more = (
        count_lines(lambda: [redactor.is_unsplit(text) for text in texts])  # noqa: B023
        for redactor in (some, many)
    )

    assert more < 3 * few


def test_a_process_has_a_bounded_number_of_screens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A screen takes more memory than a tenant's secrets; further tenants are searched in full."""
    screens: WeakSet[SplitScreen] = WeakSet()
    monkeypatch.setattr(redactor_module, "_screens", screens)
    monkeypatch.setattr(redactor_module, "MAX_SCREENS", 2)
    redactors = [Redactor({"KEY": f"kQz7vXw2pLm{number}Rt"}) for number in range(3)]
    text = b'"one", ' * 400

    assert [redactor.is_unsplit(text) for redactor in redactors] == [True, True, False]
    assert len(screens) == 2
    del redactors
    gc.collect()
    assert len(screens) == 0


@each(("end", "escape"), product(range(1, len(SHORT_SECRET)), ["\\u00%02x", "\\x%02x"]))
def test_a_secret_is_found_if_a_string_ends_within_an_escape_of_it(end: int, escape: str) -> None:
    """The backslash at the end of the string seems to escape its quotation mark."""
    rows = [f"row {number}" for number in range(40)]
    escaped_byte = escape % ord(SHORT_SECRET[end])
    pieces = [f"{SHORT_SECRET[:end]}\\", f"{escaped_byte[1:]}{SHORT_SECRET[end + 1 :]}"]

    redacted = cleaned(json.dumps(rows + pieces).encode(), Redactor({"KEY": SHORT_SECRET}))

    assert redacted is not None
    assert json.loads(redacted)[-2:] == ["[REDACTED:KEY]", "[REDACTED:KEY]"]
