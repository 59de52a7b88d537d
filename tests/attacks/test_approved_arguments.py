"""What an approver sees, types and approves, and what runs: attacks that made them differ."""

import json
from typing import Any

import msgspec
import pytest

from gatepost.cli.approvals import print_request
from gatepost.dashboard.argument_form import Field, Filled, fields_of, filled
from gatepost.dashboard.argument_tree import read
from gatepost.dashboard.assets import Assets
from gatepost.dashboard.escaping import MAX_MARKS, hidden, spelt
from gatepost.dashboard.templating import Templates
from gatepost.documents.exact_json import decoded
from gatepost.policy.approvals.approval_request import (
    MAX_ARGUMENTS,
    ApprovalRequest,
    DisplayedParty,
    Undecidable,
)
from gatepost.policy.approvals.request_lists import erase_decider
from gatepost.policy.approvals.stored_request import merged
from tests.support.endpoint import a_caller
from tests.support.runners import ACME, BOB, CAROL, ApprovalDeployment, text_of

LONG_NUMBER = b"0.12345678901234567891"
NUMBERS = [
    LONG_NUMBER,
    b"9007199254740993.0",
    b"1e400",
    b"1.10",
    b"12345678901234567890123",
    b"-0",
]


def form_of(arguments: bytes, schema: dict[str, Any] | None = None) -> list[Field]:
    return fields_of(decoded(arguments), schema or {})


def filled_form(arguments: bytes, schema: dict[str, Any], text: str) -> Filled:
    """Return the first argument after a user types *text*."""
    fields = form_of(arguments, schema)
    return filled(fields, {fields[0].key: text})


@pytest.mark.parametrize("number", NUMBERS, ids=[number.decode() for number in NUMBERS])
def test_editing_one_argument_does_not_round_numbers_in_others(number: bytes) -> None:
    """The approver reads all digits of a number, and the tool gets the same digits."""
    arguments = b'{"to": "a", "amount": ' + number + b', "rows": [{"x": ' + number + b"}]}"
    fields = form_of(arguments, {"properties": {"to": {"type": "string"}}})
    edited = filled(fields, {fields[0].key: "b"}).encoded(arguments)

    run = msgspec.json.decode(merged(edited, arguments, arguments), type=dict[str, msgspec.Raw])

    assert bytes(run["amount"]) == number
    assert number in bytes(run["rows"])


@pytest.mark.parametrize("kind", ["number", ["number", "null"], None], ids=str)
def test_a_number_typed_in_the_form_is_passed_on_unchanged(kind: Any) -> None:
    """`1e999` does not become null."""
    arguments = filled_form(b'{"amount": 5}', {"properties": {"amount": {"type": kind}}}, "1e999")

    assert not arguments.errors
    assert arguments.encoded(b'{"amount": 5}') == b'{"amount":1e999}'


def test_a_number_without_a_schema_stays_a_number() -> None:
    """Without a schema, an edited 7 does not become the text "7"."""
    assert filled_form(b'{"amount": 5}', {}, "7").encoded(b'{"amount": 5}') == b'{"amount":7}'


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '"\\ud800"', "[" * 2_000], ids=str)
def test_ambiguous_json_in_the_form_is_an_error(text: str) -> None:
    """The form refuses duplicate names, lone surrogates and extreme nesting."""
    assert filled_form(b'{"more": {}}', {}, text).errors


def test_an_edit_may_not_exceed_the_size_limit_of_arguments() -> None:
    """The second of two approvers must be able to read what the first one wrote."""
    edited = json.dumps({"text": "x" * MAX_ARGUMENTS}).encode()

    with pytest.raises(Undecidable, match="can be looked at"):
        merged(edited, b'{"text": "x"}', b'{"text": "x"}')


@pytest.mark.parametrize("name", ["a\nb", "a\r\nb", "a\rb", "%0A", "\u2028"], ids=ascii)
def test_an_edit_works_for_argument_names_with_line_breaks_and_escapes(name: str) -> None:
    """Browsers normalise line breaks in field names, so the form encodes them."""
    arguments = json.dumps({name: "rm -rf /"}).encode()
    (field,) = form_of(arguments)

    assert field.key.isprintable()
    assert field.omit_key.isprintable()
    assert decoded(filled([field], {field.key: "ls"}).encoded(arguments)) == {name: "ls"}
    assert filled([field], {field.key: "x", field.omit_key: "yes"}).removed == {name}


@pytest.mark.parametrize("hides", ["\u202e", "\u200b", "\U000e0041", "\x7f"], ids=ascii)
def test_the_edit_form_shows_hidden_characters_as_escapes(hides: str) -> None:
    """The field of the form shows the same escapes as the page."""
    arguments = json.dumps({"list": [f"a{hides}b"]}).encode()
    (field,) = form_of(arguments)

    assert hides not in field.text
    assert decoded(field.text.encode()) == [f"a{hides}b"]


def test_a_table_marks_texts_that_look_like_other_values() -> None:
    """The table tells the text "true" from the boolean true."""
    pieces: Any = Templates(Assets().path).environment.get_template("pieces.html").module
    node = read(b'{"rows": [{"paid": "true"}, {"paid": true}]}').nodes[0]

    assert node.kind == "table"
    assert str(pieces.value(node)).count('<span class="kind">text</span>') == 1


@pytest.mark.parametrize("mark", ["\u0336", "\u20dd", "\u0301" * 30, "\U0001d159"], ids=ascii)
def test_combining_marks_that_cover_text_are_shown_as_escapes(mark: str) -> None:
    """Strike-through, enclosing marks and stacked accents cannot hide a command."""
    text = f"rm{mark} -rf"

    assert hidden(text) >= len(mark) - MAX_MARKS
    assert hidden(text)
    assert decoded(spelt(json.dumps(text, ensure_ascii=False)).encode()) == text


@pytest.mark.parametrize(
    "text", ["e\u0301", "\u1ebf", "e\u0302\u0301", "שָׁלוֹם", "ที่นี่", "क्षि"], ids=ascii
)
def test_accents_and_letters_of_all_languages_are_not_escaped(text: str) -> None:
    """Accents in ordinary words are not hidden characters."""
    assert not hidden(text)


@pytest.mark.parametrize("sign", ["\u2028", "\x0c", "\x1c", "\x85", "\ufe01", "\u3164"], ids=ascii)
def test_approvals_show_escapes_line_separators_and_invisible_characters(
    sign: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`approvals show` neither splits a line nor hides characters that models read."""
    ada = DisplayedParty(subject="ada")
    script = ApprovalRequest(
        id="script:1",
        tenant="acme",
        kind="script",
        state="waiting",
        tool="a.star",
        caller=ada,
        created_at=0,
        until=1,
        content=f"# nothing{sign}evil()\n",
    )
    arguments = json.dumps({"a": f"x{sign}y"}, ensure_ascii=False).encode()
    print_request(script)
    print_request(msgspec.structs.replace(script, kind="call", content=None, arguments=arguments))

    output = capsys.readouterr().out
    assert sign not in output
    assert "# nothing\\" in output
    assert '"a": "x\\' in output


REDACTED_PASSWORD = "[REDACTED:PASSWORD]"
USERS = [{"name": "ann", "word": "anns"}, {"name": "bob", "word": "bobs"}, {"name": "eve"}]
ANN, BOB_HIDDEN, EVE = (
    {"name": "ann", "word": REDACTED_PASSWORD},
    {"name": "bob", "word": REDACTED_PASSWORD},
    {"name": "eve"},
)


def edited_users(*edited: object) -> object:
    displayed, original = [ANN, BOB_HIDDEN, EVE], USERS
    arguments = (json.dumps({"users": users}).encode() for users in (edited, displayed, original))
    return json.loads(merged(*arguments))["users"]


@pytest.mark.parametrize(
    "edited",
    [
        [BOB_HIDDEN, EVE],
        [BOB_HIDDEN, ANN, EVE],
        [ANN, BOB_HIDDEN],
        [ANN, BOB_HIDDEN, EVE, EVE],
        [ANN | {"name": "bob"}, BOB_HIDDEN | {"name": "ann"}, EVE],
        [EVE, EVE, ANN],
    ],
    ids=["removed", "swapped", "cut", "longer", "renamed", "moved"],
)
def test_an_edit_cannot_move_a_secret_to_another_list_entry(edited: list[object]) -> None:
    """Redacted entries look alike, so removing one must not shift the secrets."""
    with pytest.raises(Undecidable, match="withheld"):
        edited_users(*edited)


def test_list_entries_without_redacted_secrets_can_be_edited() -> None:
    """Entries with redacted secrets keep them; other entries may be changed or replaced."""
    mallory = {"name": "mallory"}
    assert edited_users(ANN, BOB_HIDDEN, mallory) == [*USERS[:2], mallory]
    assert edited_users(ANN, {"name": "bob", "word": "new"}, EVE) == [
        USERS[0],
        {"name": "bob", "word": "new"},
        EVE,
    ]
    assert edited_users(EVE) == [EVE]


async def test_erasing_an_approver_removes_their_edit() -> None:
    """After the erasure, the next approver can restore the original arguments."""
    deployment = ApprovalDeployment(rules=[{"tools": ["act"], "approvals": 2}])
    replica = deployment.replica()
    request = await replica.asked(what="a", amount=1)
    await replica.service.approve(ACME, request.id, BOB, edited=b'{"what":"evil","amount":9}')
    await erase_decider(deployment.records.of(ACME).approvals, BOB.issuer, BOB.subject)

    original = b'{"what":"a","amount":1}'
    third = await replica.service.approve(ACME, request.id, CAROL, edited=original)
    dan = a_caller(subject="dan", roles=frozenset({"approver"}))
    approved = await replica.service.approve(ACME, request.id, dan)

    assert (third.edited, third.decisions[-1].edited, approved.state) == (None, False, "approved")
    assert text_of(await replica.call(what="a", amount=1)) == "a 1 1"
