"""An audit record shows the beginning of long arguments, without any part of a secret."""

import json
from collections.abc import Callable, Mapping
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.redaction.clear_document import is_surely_clear, searched_and_cleaned
from gatepost.redaction.cut_document import NEAR_BYTES, cut_whole, is_clear_before
from gatepost.redaction.json_document import bare, cleaned
from gatepost.redaction.redactor import Redactor, are_clear
from tests.redaction.test_automaton import TEXT_PIECES
from tests.redaction.test_encodings import REDACTOR, SECRETS, base64_text
from tests.support.measuring import each

FIRST_PART, SECOND_PART = SECRETS["PASSWORD"][:20], SECRETS["PASSWORD"][20:]
SEPARATED_PARTS = {
    "nothing": json.dumps({"q": FIRST_PART + SECOND_PART + "x" * 30_000}),
    "blanks behind a line break": json.dumps(
        {"q": FIRST_PART + "\n" + " " * 12_000 + SECOND_PART + "x" * 30_000}
    ),
    "a long name": json.dumps({"q": FIRST_PART, "n" * 12_000: SECOND_PART, "z": "x" * 30_000}),
    "white space of JSON": json.dumps(
        {"q": FIRST_PART, "r": SECOND_PART, "z": "x" * 30_000}
    ).replace(", ", " " * 12_000 + ", "),
    "words of JSON": json.dumps(
        {"q": [FIRST_PART, *[True] * 12_000, SECOND_PART], "z": "x" * 30_000}
    ),
}

HIDDEN_PARTS = {
    "names that begin what values end": (r'{"q":"FIRST\n"', ',"&#":"00009;"', ',"SECOND":1}'),
    "strings that begin what numbers end": (r'["FIRST\n%0"', ',9,"%0"', ',9,"SECOND"]'),
    "numbers apart from their signs": (r'["FIRST\n&#"', ',- 9,";&#"', ',9,";SECOND"]'),
    "escaped backslashes": (
        r'["FIRST\n"',
        r',zzzzzz%22xxxxxxxxxx%22zzzzzzz,"\\u0009"',
        ',"SECOND"]',
    ),
    "marks that are letters at first": (
        "['FIRST%0A'",
        ",zzzzzz%27xxxxxxxx%27zzzzzz,'%09'",
        ",'SECOND']",
    ),
}
"""White space that only one order, or one decoding, of the strings of a text shows to be that."""
UNDECODED_TEXTS = (
    r"""{"q":"['FIRST\n'""",
    r",zzzzzz\u0027xxxxxxxx\u0027zzzzzz,'\t'",
    r"""'SECOND'\ud800"}""",
)


def _with_halves(begin: str, often: str, end: str) -> str:
    return (begin + 3_000 * often + end).replace("FIRST", FIRST_PART).replace("SECOND", SECOND_PART)


SEPARATED_PARTS |= {
    "a string that cannot be decoded": _with_halves(*UNDECODED_TEXTS),
    **{name: _with_halves(*HIDDEN_PARTS[name]) for name in [*HIDDEN_PARTS][:2]},
    **{
        f"{name}, in a text": json.dumps({"q": _with_halves(*HIDDEN_PARTS[name])})
        for name in HIDDEN_PARTS
    },
}


@each("between", SEPARATED_PARTS)
def test_a_secret_that_a_cut_parts_is_found_at_any_distance(between: str) -> None:
    """The caller decides how far behind the cut of a record the rest of the secret is."""
    encoded = SEPARATED_PARTS[between].encode()
    for cut in range(10, encoded.index(FIRST_PART.encode()) + len(FIRST_PART)):
        assert not is_clear_before(encoded, cut, REDACTOR)


def test_a_nested_token_is_found_before_a_cut_within_a_surrogate_pair() -> None:
    """The cut string could otherwise not be decoded."""
    token = 16 * "\\" + "u0067hp_" + "a1B2" * 9
    for size in (1_000, 4_096 + NEAR_BYTES):
        begin = '{"q":"' + token
        encoded = (
            begin + "." * (size - 6 - len(begin)) + json.dumps("😀" + "." * 9_000)[1:]
        ).encode()
        assert not is_clear_before(encoded + b"}", 4_096, Redactor({}))
        assert b"a1B2" not in (cleaned(cut_whole(encoded, size), Redactor({})) or encoded)


def test_only_the_part_near_the_cut_of_a_long_document_is_searched() -> None:
    """Usual documents are decided this way."""
    line = "A line of a document as agents send and read them, at its length.\n"

    assert is_clear_before(json.dumps({"q": line * 500}).encode(), 4_096, REDACTOR)


@given(st.lists(TEXT_PIECES, max_size=12).map(b"".join), st.integers(1, 60))
def test_a_clear_text_before_a_cut_has_no_secret(text: bytes, cut: int) -> None:
    """A search of the whole document agrees, except for the first bytes of a token's form."""
    encoded = json.dumps({"text": text.decode() + "." * 9_000}).encode()
    for redactor in (REDACTOR, Redactor({})):
        if is_clear_before(encoded, cut, redactor):
            prefix = (cleaned(encoded, redactor) or encoded)[: cut - 12]
            assert cut < 12 or prefix == encoded[: cut - 12]


NEIGHBOURS = st.lists(
    st.sampled_from(["x", "y" * 40, "it's", "n" * 900, 7, FIRST_PART, SECOND_PART]), max_size=9
)
FAR_APART: dict[str, object] = {
    "numbers": [7] * 9_000,
    "a name": {"n" * 30_000: 1},
    "a name before a piece": {"n" * 30_000: FIRST_PART},
    "values": ["x"] * 200,
}


@given(NEIGHBOURS, st.sampled_from(sorted(FAR_APART)), NEIGHBOURS, st.integers(0, 900))
def test_a_clear_text_of_many_values_before_a_cut_has_no_secret(
    before: list[object], between: str, behind: list[object], cut: int
) -> None:
    """Any separator may stand between the values, in the document or in one within a text."""
    values = [*before, FIRST_PART, FAR_APART[between], SECOND_PART, *behind]
    for begun in (values, {"q": values}, {"q": json.dumps(values)}, [repr(values)]):
        encoded = json.dumps([begun, {"z": "." * 30_000}]).encode()
        if is_clear_before(encoded, cut + 13, REDACTOR):
            prefix = bare(encoded[: cut + 1])
            assert bare(cleaned(encoded, REDACTOR) or encoded).startswith(prefix)


PLANTED_VALUES = (
    *("x", "it's", 'a "b"', "50%", "\n", "  y", 7, "a\\", "\ud800"),
    *(FIRST_PART, SECOND_PART),
)
PLANTED = st.lists(st.sampled_from(PLANTED_VALUES), max_size=7)
WRITERS = (
    json.dumps,
    repr,
    partial(json.dumps, indent=2),
    lambda values: "\n".join(map(str, values)),
)


@pytest.mark.requirement("P13")
@given(PLANTED, st.sampled_from(WRITERS), st.integers(0, 2), st.integers(1, 60))
def test_a_surely_clear_document_has_no_secret(
    values: list[object], written: Callable[[object], str], nested: int, cut: int
) -> None:
    """A search of its strings, taken apart, finds none either, also if its end is missing."""
    document: object = values
    for _ in range(nested):
        document = [written(document), 1]
    encoded = json.dumps(document).encode()
    for text in (encoded, encoded[:cut]):
        if is_surely_clear(text, REDACTOR):
            assert cleaned(text, REDACTOR) is None


@pytest.mark.requirement("P13")
def test_a_private_key_in_a_list_of_its_lines_is_not_surely_clear() -> None:
    """Tools that take the lines of a file get such arguments."""
    lines = [
        "-----BEGIN PRIVATE KEY-----",
        *["c2VjcmV0IGtleQ" * 4] * 3,
        "-----END PRIVATE KEY-----",
    ]
    for document in (lines, {"lines": lines, "path": 'a "b"\n'}):
        encoded = json.dumps(document).encode()

        assert not are_clear([encoded], REDACTOR)
        assert not is_surely_clear(encoded, REDACTOR)


BLOCKS: Mapping[str, Callable[[object], dict[str, object]]] = {
    "text": lambda value: {"type": "text", "text": str(value)},
    "link": lambda value: {"type": "resource_link", "uri": "file:///a", "name": value},
    "annotation": lambda value: {"type": "text", "text": "t", "annotations": {str(value): value}},
    "document": lambda value: {"type": "text", "text": json.dumps(["x", value])},
    "bytes": lambda value: {
        "uri": "a:b",
        "blob": base64_text(f"{value}".encode("utf8", "replace")),
    },
}
FEW_SECRETS = Redactor({name: SECRETS[name] for name in ("PASSWORD", "PIN")})
"""As few as most tenants have; for many there is no search of the whole."""


@pytest.mark.requirement("P13")
@given(st.lists(st.tuples(st.sampled_from([*BLOCKS]), st.sampled_from(PLANTED_VALUES))))
def test_a_search_of_blocks_finds_what_taking_them_apart_finds(
    parts: list[tuple[str, object]],
) -> None:
    """A secret may be split over blocks, between which are words of the protocol."""
    long_text = {"type": "text", "text": "It's a long text. " * 20}
    encoded = json.dumps([*(BLOCKS[kind](value) for kind, value in parts), long_text]).encode()

    clean = searched_and_cleaned(encoded, FEW_SECRETS, blocks=True)

    assert clean == cleaned(encoded, FEW_SECRETS, blocks=True)


def test_usual_blocks_are_decided_by_a_search_of_the_whole() -> None:
    """To take a list of resources apart takes fifteen times as long."""
    entries = [{"uri": f"item://n{number}", "name": f"n{number}"} for number in range(100)]

    redactor = Redactor({"KEY": FIRST_PART + SECOND_PART})

    assert is_surely_clear(json.dumps(entries).encode(), redactor)


def test_usual_documents_are_decided_by_searches_of_the_whole() -> None:
    """To take them apart takes ten times as long."""
    row = {"id": 12345, "name": 'A "row" of a table\n', "share": "50 % of it", "tags": ["a", "b"]}
    redactor = Redactor({"KEY": FIRST_PART + SECOND_PART})

    for indent in (None, 2):
        rows = json.dumps([row] * 60, indent=indent)
        for document in (json.loads(rows), {"q": rows}, {"q": "It's a task-list:\n" + rows}):
            assert is_surely_clear(json.dumps(document).encode(), redactor)


def test_only_the_values_near_the_cut_are_searched() -> None:
    """This takes a thirtieth of the time of a search of the whole document."""
    rows = [{"id": 12345, "name": "A row of a table", "tags": ["a", "b"], "total": 12.5}] * 700

    for document in ({"rows": rows}, {"q": json.dumps(rows)}, {"q": repr(rows)}):
        assert is_clear_before(json.dumps(document).encode(), 4_096, REDACTOR)
