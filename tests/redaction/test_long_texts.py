"""Redaction finds a secret anywhere in a long text, whatever stands beside it."""

import json
import re
from collections.abc import Callable
from functools import partial
from itertools import chain, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gatepost.redaction import quoted_strings
from gatepost.redaction.cut_document import cut_whole, is_clear_before
from gatepost.redaction.json_document import cleaned
from gatepost.redaction.redactor import Redactor, cleaned_text
from gatepost.redaction.screen import STEP_BYTES, Screen
from gatepost.tools.authoring.pack import Pack
from gatepost.tools.authoring.results import wrapped
from gatepost.tools.calls.redaction import answer_without, is_harmless
from gatepost.tools.offers.offer import CallContext, Outcome
from tests.redaction.test_encodings import FORMS
from tests.support.measuring import each, functions_called

SECRET_VALUE = "correct-horse-battery-staple"
FEW_SECRETS = {"PASSWORD": SECRET_VALUE}
MANY_SECRETS = FEW_SECRETS | {f"S{number}": f"{number:04}-another-value" for number in range(100)}
"""Too many to screen a text for."""
REDACTORS = {"few": Redactor(FEW_SECRETS), "many": Redactor(MANY_SECRETS)}
TOKENS = {
    "GITHUB_TOKEN": "ghp_" + "a1B2" * 9,
    "OPENAI_KEY": "sk-" + "0123456789abcdef" * 2,
    "SENDGRID_KEY": "SG." + "a1" * 11 + "." + "b2" * 21 + "c",
}
LINE = "A line of a document, as agents send and read them: many of it.\n"
NEIGHBOURING_TEXTS = {
    "lines": LINE,
    "indented lines": f"    {LINE}",
    "one line": LINE.replace("\n", " "),
    "lines as Windows ends them": LINE.replace("\n", "\r\n"),
    "beginnings of tokens": "sk- hf_ eyJ ghp_ SG. AKIA ",
}


def planted_text(filler: str, at: int, planted: str) -> tuple[str, str, str]:
    """Return *planted* at that byte of a long text, as the parts before it, it, and behind it."""
    before = (filler * (at // len(filler) + 1))[:at]
    return f"{before[:-1]}|", planted, f"|{filler * 20}"


@pytest.mark.requirement("P13")
@each(
    ("redactor_name", "neighbour"),
    [(many, beside) for many in REDACTORS for beside in NEIGHBOURING_TEXTS],
    ids=str,
)
def test_a_secret_is_found_at_every_place_of_a_long_text(
    redactor_name: str, neighbour: str
) -> None:
    """It may cross the border of two searched pieces, or stand beside text like a secret."""
    redactor = REDACTORS[redactor_name]
    for name, secret in {"PASSWORD": SECRET_VALUE, **TOKENS}.items():
        for at in (2_000, *range(STEP_BYTES - len(secret) - 8, STEP_BYTES + 8, 9)):
            before, planted, behind = planted_text(NEIGHBOURING_TEXTS[neighbour], at, secret)

            assert redactor.clean(before + planted + behind) == f"{before}[REDACTED:{name}]{behind}"


@pytest.mark.requirement("P13")
@each("form", sorted(FORMS), ids=str)
@each("redactor_name", sorted(REDACTORS), ids=str)
def test_each_encoding_is_found_in_a_long_text(form: str, redactor_name: str) -> None:
    """This holds for any number of secrets."""
    written = FORMS[form].encode(SECRET_VALUE)
    before, planted, behind = planted_text(LINE, STEP_BYTES - len(written) // 2, written)

    clean = REDACTORS[redactor_name].clean(before + planted + behind)

    assert clean.count("[REDACTED:PASSWORD]") == 1
    assert clean.startswith(before)
    assert clean.endswith(behind)


@pytest.mark.requirement("P13")
@each("indent", ["", " ", "\t", "\v", "\f"], ids=repr)
def test_a_secret_over_several_lines_of_a_long_text_is_found(indent: str) -> None:
    """A line may be indented by any blank, and the lines before it need not be."""
    broken = f"\n{indent}".join(SECRET_VALUE[at : at + 5] for at in range(0, len(SECRET_VALUE), 5))
    before, planted, behind = planted_text(LINE, 30_000, broken)

    assert REDACTORS["few"].clean(before + planted + behind) == (
        f"{before}[REDACTED:PASSWORD]{behind}"
    )


SECRET_PIECES = ["correct-", "horse-bat", "tery-", "staple"]
DIGITS = ["97-", 318, "x", 42, "-y", 2.5, "z"]
"""A secret whose pieces may be numbers."""
ROWS: list[Any] = [
    {"id": 7, "name": "A row", "ok": True, "none": None, "of": ["a", 1.5e3]} for _ in range(60)
]
SPLIT_SECRETS: dict[str, Any] = {
    "values of a list": SECRET_PIECES,
    "values of an object": {"a": "correct-", "b": "horse-bat", "c": "tery-", "d": "staple"},
    "values with numbers between": [
        part for piece in SECRET_PIECES for part in (piece, 1, True, None)
    ],
    "names and values": {"correct-": "horse-bat", "tery-": "staple"},
    "strings and numbers": DIGITS,
}
WRITERS: dict[str, Callable[[Any], str]] = {
    "JSON": json.dumps,
    "JSON with blanks before colons": partial(json.dumps, separators=(" , ", " : ")),
    "indented JSON": partial(json.dumps, indent=1),
    "JSON within JSON": lambda value: json.dumps({"inner": json.dumps(value)}),
    "Python": repr,
}


@pytest.mark.requirement("P13")
@each(("split", "written"), product(SPLIT_SECRETS, WRITERS), ids=str)
def test_a_split_secret_is_found_among_many_strings(
    monkeypatch: pytest.MonkeyPatch, split: str, written: str
) -> None:
    """It may stand before, among or behind them, or where a joined group of strings ends."""
    monkeypatch.setattr(quoted_strings, "STRINGS_AT_ONCE", 15)
    redactor = Redactor({"PASSWORD": SECRET_VALUE, "DIGITS": "".join(map(str, DIGITS))})
    for before in (*range(12), len(ROWS)):
        text = WRITERS[written]([*ROWS[:before], SPLIT_SECRETS[split], *ROWS[before:]])
        marks = [f"[REDACTED:{name}]" for name in ("PASSWORD", "DIGITS")]

        clean = cleaned_text(text, redactor)

        assert any(mark in clean for mark in marks), before
        assert not any(piece in clean for piece in ("horse-bat", "staple", "97-", "-y"))
        assert cleaned_text(text.replace("horse", "cows").replace("97-", "98-"), redactor) == (
            text.replace("horse", "cows").replace("97-", "98-")
        )
        if written.startswith("JSON"):
            document = cleaned(text.encode(), redactor)
            assert document is not None
            assert not any(piece in document for piece in (b"horse-bat", b"staple", b"97-", b"-y"))


TEXT_PARTS = st.sampled_from(
    [*"\"':-1e.+xs\0\1\n", " :", "--", "23", "-4", "4.5e+3", "true", "false", ", ", "7-", "truer"]
)


@given(
    st.lists(TEXT_PARTS, max_size=30).map("".join), st.sampled_from("\"'"), st.sampled_from([2, 99])
)
def test_strings_are_joined_in_the_orders_in_which_they_can_be_read(
    text: str, quote: str, at_once: int
) -> None:
    """One pattern gives the orders: strings, names, and numbers outside of both."""
    leaf = re.compile(rf"{quote}([^{quote}]*){quote}(\s*:)?|{quote}|(-?[0-9][0-9.eE+-]*)")
    read = [match for match in leaf.finditer(text) if match[1] is not None or match[3]]
    values = "".join(match[1] for match in read if match[1] and not match[2])
    named = "".join(match[1] for match in read if match[1])
    numbered = "".join(match[3] or match[1] for match in read if not match[2])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quoted_strings, "STRINGS_AT_ONCE", at_once)

        views = quoted_strings.joined_strings(text.encode(), quote.encode())

    orders = [values, *(variant for variant in (named, numbered) if len(variant) > len(values))]
    assert views == [order.encode() for order in orders]


PACK = Pack("documents")


@PACK.tool(read_only=True)
async def repeat(ctx: CallContext, text: str) -> str:
    """Give a text back."""
    return text


PLANTED_PIECES = (
    st.lists(
        st.sampled_from(
            [
                [SECRET_VALUE],
                SECRET_PIECES,
                SECRET_PIECES[::-1],
                [TOKENS["OPENAI_KEY"]],
                ["it's so"],
                ["\n", 7],
            ]
        ),
        min_size=1,
        max_size=2,
    )
    .map(chain.from_iterable)
    .map(list)
)


@given(PLANTED_PIECES, st.sampled_from(sorted(WRITERS)), st.sampled_from(sorted(REDACTORS)))
def test_one_search_of_an_answer_covers_its_single_texts(
    told: list[str | int], written: str, redactor_name: str
) -> None:
    """A search of every single text of the answer finds no secret, either."""
    redactor = REDACTORS[redactor_name]
    text, value = WRITERS[written](told), json.dumps(told).encode()
    plain = Outcome(content=({"type": "text", "text": text},))
    both = Outcome(content=({"type": "text", "text": value.decode()},), structured=Raw(value))

    for outcome in (plain, both, wrapped(b'{"result":%b}' % value)):
        if is_harmless(outcome, redactor) or is_harmless(outcome, redactor, promptly=False):
            assert answer_without(outcome, PACK.tools["repeat"], redactor) is outcome


def test_rows_and_the_text_that_repeats_them_are_searched_once() -> None:
    """The text is the same JSON, of which nothing can be found in one place alone."""
    rows = [{"id": 12345, "name": "A row of a table", "tags": ["a", "b"]}] * 50
    encoded = json.dumps({"result": rows}, separators=(",", ":")).encode()

    called = functions_called(lambda: is_harmless(wrapped(encoded), REDACTORS["few"]))

    assert called.count("Redactor.is_unsplit") == 1
    assert "joined_strings" not in called


@pytest.mark.requirement("P13")
@each("size", [0, 200_000])
def test_a_private_key_in_a_list_of_its_lines_is_found_in_answers_of_any_length(size: int) -> None:
    """Tools that list the lines of a file give such answers."""
    begin, end = (f"-----{word} PRIVATE KEY-----" for word in ("BEGIN", "END"))
    value = json.dumps([[begin, *["c2VjcmV0IGtleQ" * 4] * 20, end], "x" * size]).encode()
    outcome = Outcome(content=({"type": "text", "text": value.decode()},), structured=Raw(value))
    for promptly in (True, False):
        assert not is_harmless(outcome, REDACTORS["few"], 2 * 200_000, promptly=promptly)

    clean = answer_without(outcome, PACK.tools["repeat"], REDACTORS["few"])

    assert "c2VjcmV0" not in str(clean.content) + bytes(clean.structured).decode()


@pytest.mark.requirement("P13")
@each("character", ["é", "€", "😀"], ids=str)
def test_a_document_cut_within_a_character_is_still_searched(character: str) -> None:
    """The audit record cuts arguments, and would otherwise say nothing of the call."""
    redactor = REDACTORS["few"]
    document = json.dumps({"text": f"{character * 40}\n" * 500}, ensure_ascii=False).encode()
    secret = document.replace(b"\\n", f"{SECRET_VALUE}\\n".encode(), 1)

    for cut in range(6_000, 6_008):
        assert cleaned(document[:cut], redactor) is None
        assert b"[REDACTED:PASSWORD]" in (cleaned(secret[:cut], redactor) or b"")
        assert is_clear_before(document, cut, redactor)
        assert not is_clear_before(secret, cut, redactor)


@each("text", ["é€😀", "\\", '"', "\a", 'a\\"\n', "u\\u"], ids=ascii)
@each("ascii_only", [True, False], ids=str)
def test_a_cut_document_ends_with_a_whole_character(text: str, ascii_only: bool) -> None:
    """The decoder then needs one pass, and loses no more than that character."""
    text = text.replace("😀", "") if ascii_only else text
    document = json.dumps({"text": text * 100}, ensure_ascii=ascii_only).encode()
    assert cut_whole(document, len(document)) == document

    for size in range(20, 80):
        cut = cut_whole(document, size)

        assert size - 6 < len(cut) <= size
        assert document.startswith(cut)
        assert (text * 100).startswith(json.loads(cut + b'"}')["text"])


def test_a_text_full_of_token_prefixes_is_one_place_of_the_screen() -> None:
    """Otherwise a caller could make each byte of its texts cost twenty times as much."""
    screen = Screen({b"sk-", b"ghp_"})
    clear, dense = b"." * STEP_BYTES, b"sk-" * STEP_BYTES

    spans = [*screen.search_areas(clear + dense + clear)]
    alone = [*screen.search_areas(clear + b"sk-" + clear)]

    ((begin, end),) = spans
    assert STEP_BYTES - 9 < begin <= STEP_BYTES
    assert end == len(clear + dense + clear)
    ((_, end),) = alone
    assert end < STEP_BYTES + 16
