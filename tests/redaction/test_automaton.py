"""Redaction removes every encoding that docs/redaction.md names, and nothing else."""

import json
import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gatepost.redaction.json_document import cleaned
from gatepost.redaction.redactor import Redactor
from tests.redaction.test_encodings import FORMS, REDACTOR, SECRETS, base64_text
from tests.support.measuring import each, slowness


@pytest.mark.requirement("P13")
def test_lines_of_a_key_are_found_one_by_one() -> None:
    """A tool that prints a file line by line must not print a key."""
    lines = SECRETS["CERT"].splitlines()

    assert REDACTOR.clean(f"12: {lines[1]}") == "12: [REDACTED:CERT]"
    assert REDACTOR.clean(f"11: {lines[0]}") == f"11: {lines[0]}"


def test_a_very_short_secret_is_not_redacted() -> None:
    """Two characters occur in every text."""
    assert REDACTOR.clean("about") == "about"


@pytest.mark.requirement("P13")
def test_the_credential_of_a_header_value_is_found_without_its_scheme() -> None:
    """The program that echoes the header may have removed the scheme."""
    header = Redactor({"AUTH": "Bearer token123-x", "USER": "Basic dXNlcjpteS1vd24tcGFzc3dvcmQ="})

    assert header.clean("t=token123-x p=my-own-password") == "t=[REDACTED:AUTH] p=[REDACTED:USER]"


@pytest.mark.requirement("P13")
def test_credentials_in_json_are_found_by_their_long_texts() -> None:
    """A tool that reads a service account's file may print its members one by one."""
    account = json.dumps({"type": "service", "keys": [{"private": "0123456789abcdef-private"}]})

    assert Redactor({"GCP": account}).clean("a service 0123456789abcdef-private") == (
        "a service [REDACTED:GCP]"
    )


def test_credentials_in_json_are_found_under_a_repeated_name() -> None:
    """Programs differ in which of the two they read."""
    account = '{"key": "first-0123456789abcdef", "key": "second-0123456789abcdef"}'

    assert Redactor({"GCP": account}).clean("first-0123456789abcdef") == "[REDACTED:GCP]"


OVERLAPPING_SECRETS = [
    ({"LONG": "abcdefghij", "PART": "cdefgh"}, "xabcdefghijy", "x[REDACTED:LONG]y"),
    ({"LEFT": "abcdefgh", "RIGHT": "efghijklm"}, "xabcdefghijklmy", "x[REDACTED:RIGHT]y"),
    ({"ONE": "same-value", "TWO": "same-value"}, "same-value", "[REDACTED:ONE]"),
    ({"INNER": "sk-and-more"}, "my-sk-and-more", "my-[REDACTED:INNER]"),
    ({"MINE": "ghp_" + "a1B2" * 9}, "ghp_" + "a1B2" * 9, "[REDACTED:MINE]"),
    ({"A": "aaaa"}, "aaaaaaaaa!", "[REDACTED:A]!"),
    ({'O"D\\D': "odd-named-value"}, "odd-named-value", "[REDACTED:O_D_D]"),
]


@pytest.mark.parametrize(("secrets", "text", "clean"), OVERLAPPING_SECRETS)
def test_overlapping_matches_always_get_the_same_name(
    secrets: dict[str, str], text: str, clean: str
) -> None:
    """Known values win over token forms, and longer matches over shorter ones."""
    assert Redactor(secrets).clean(text) == clean


@pytest.mark.requirement("P13")
@given(st.data(), st.sampled_from(["PASSWORD", "API_KEY"]))
def test_a_secret_split_over_texts_is_found(data: st.DataObject, name: str) -> None:
    """It may be split over blocks of content or strings of a list, in pieces of any size."""
    value = SECRETS[name]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(value) - 1), max_size=5)))
    pieces = [value[a:b] for a, b in zip([0, *cuts], [*cuts, len(value)], strict=True)]
    blocks = [{"type": "text", "text": piece} for piece in ["first ", *pieces, " last"]]

    content = cleaned(json.dumps(blocks).encode(), REDACTOR, blocks=True)
    listed = cleaned(
        json.dumps({"rows": [{"part": p} for p in pieces][:1], "pieces": pieces}).encode(), REDACTOR
    )

    assert content is not None
    joined = "".join(block["text"] for block in json.loads(content))
    assert set(joined.replace(f"[REDACTED:{name}]", "#")) <= set("first # last")
    assert joined.startswith("first [")
    assert listed is not None
    assert set(json.loads(listed)["pieces"]) == {f"[REDACTED:{name}]"}


@given(st.text(max_size=200))
def test_a_text_without_secrets_stays_the_same_object(text: str) -> None:
    """This holds for any text."""
    assume(not any(value in text for value in SECRETS.values()))

    assert REDACTOR.clean(text) is text


WITHOUT_SECRETS = Redactor({})
"""Finds only tokens of known services, by their form."""
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def with_secret(value: object, secret: str) -> object:
    """Return the value with a secret in each of its strings and names."""
    if isinstance(value, str):
        return f"{value}{secret}"
    if isinstance(value, list):
        return [with_secret(item, secret) for item in value]
    if isinstance(value, dict):
        return {f"{key}{secret}": with_secret(item, secret) for key, item in value.items()}
    return value


@pytest.mark.requirement("P13")
@given(JSON_VALUES, st.sampled_from(["API_KEY", "PASSWORD"]), st.booleans())
def test_redacted_json_stays_valid_with_all_other_values(
    value: object, name: str, ascii_only: bool
) -> None:
    """Strings, names of members and numbers alike, however the document is written."""
    encoded = json.dumps(with_secret(value, SECRETS[name]), ensure_ascii=ascii_only).encode()
    # Behind `ya29.`, say, a secret is part of a token, which is redacted as a whole.
    assume(cleaned(encoded, WITHOUT_SECRETS) is None)

    clean = cleaned(encoded, REDACTOR)

    expected = with_secret(value, f"[REDACTED:{name}]")
    assert (json.loads(encoded) if clean is None else json.loads(clean)) == expected
    assert cleaned(json.dumps(value).encode(), REDACTOR) is None


NUMBERS = [
    ({"pin": 86427531}, {"pin": "[REDACTED:PIN]"}),
    ([1, 86427531, -2.5e3], [1, "[REDACTED:PIN]", -2500.0]),
    ({"a": {"b": [86427531.5]}}, {"a": {"b": ["[REDACTED:PIN]"]}}),
    ([8642753, 186427], None),
]


@pytest.mark.parametrize(("value", "expected"), NUMBERS)
def test_a_secret_of_digits_is_found_as_a_number(value: object, expected: object) -> None:
    """A number cannot hold a marker: it becomes a string."""
    clean = cleaned(json.dumps(value).encode(), REDACTOR)

    assert (None if clean is None else json.loads(clean)) == expected


def test_redacting_a_redacted_text_changes_nothing() -> None:
    """Stored outcomes are redacted twice."""
    for form in FORMS.values():
        once = REDACTOR.clean(f"a {form.encode(SECRETS['PASSWORD'])} b")

        assert REDACTOR.clean(once) is once


ORDINARY_TEXTS = [
    "pip install scikit-learn  # from sk-learn; see class sk-toggleable__label-arrow",
    ".sk-folding-cube .sk-cube1:before { animation-delay: 0.3s }  /* sk-circle-fade-dot-12 */",
    "commit 9fceb02d0ae598e95dc970b74767f19372d61af8, see 123e4567-e89b-12d3-a456-426614174000",
    "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "Authorization: Bearer YOUR_ACCESS_TOKEN, or Basic authentication with credentials",
    "the basic understanding of bearer authentication-and-authorization-schemes",
    'text before "-----BEGIN RSA PRIVATE KEY-----" and after "-----END RSA PRIVATE KEY-----"',
    "-----BEGIN CERTIFICATE-----\nMIIBszCCARygAwIBAgIUX5mJ0bL0\n-----END CERTIFICATE-----",
    "ASIAN AKIATA glpat-short xoxb-words-only npm_config_cache hf_hub_download eyJhbGci",
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAUAAAAFCAYAAACNbyblAAAAHElEQVQI12P4",
    "100% of &c. at C:\\new\\users\\x41, %ZZ &amp; \\u00zz",
]


@each("text", ORDINARY_TEXTS)
def test_ordinary_text_is_not_redacted(text: str) -> None:
    """Words that begin like tokens, hashes, ids, certificates, pictures."""
    assert Redactor({}).clean(text) is text
    assert REDACTOR.clean(text) is text


TOKENS = [
    ("GITHUB_TOKEN", "ghp_" + "a1B2" * 9),
    ("GITHUB_TOKEN", "github_pat_" + "11ABCDEFG0" * 4),
    ("GITLAB_TOKEN", "glpat-" + "x1Y2z" * 4),
    ("SLACK_TOKEN", "xoxb-1234567890-abcdefABCDEF"),
    ("AWS_ACCESS_KEY", "AKIAIOSFODNN7EXAMPLE"),
    ("GOOGLE_API_KEY", "AIza" + "Sy-3_" * 7),
    ("ANTHROPIC_KEY", "sk-ant-api03-" + "aB3_-" * 10),
    ("OPENAI_KEY", "sk-proj-" + "aB3_-" * 10),
    ("OPENAI_KEY", "sk-" + "0123456789abcdef" * 2),
    ("STRIPE_KEY", "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc"),
    ("NPM_TOKEN", "npm_" + "a1B2" * 9),
    ("SENDGRID_KEY", "SG." + "a" * 22 + "." + "b" * 43),
    ("JWT", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dBjftJeZ4CVPmB92K27u"),
    ("PRIVATE_KEY", "-----BEGIN PRIVATE KEY-----\n" + "MIIE\n" * 9 + "-----END PRIVATE KEY-----"),
    ("PRIVATE_KEY", "-----BEGIN EC PRIVATE KEY-----\n" + "MHcCAQEEIIGL" * 4),
]


@pytest.mark.requirement("P13")
@each(("name", "token"), TOKENS)
def test_tokens_of_known_services_are_found(name: str, token: str) -> None:
    """They are found in text, in JSON, percent-encoded, and in base64 with a long beginning."""
    plain = Redactor({})

    assert plain.clean(f"use {token}") == f"use [REDACTED:{name}]"
    assert token not in plain.clean(f'export KEY="{token}"')
    assert token[8:] not in plain.clean(json.dumps({"key": token}))
    assert f"[REDACTED:{name}]" in plain.clean(FORMS["percent, every byte"].encode(token))
    if not token.startswith(("sk-p", "sk-0", "SG.")):
        for before in ("", ".", ".."):
            written = base64_text(f"{before}{token}\n".encode())
            assert f"[REDACTED:{name}]" in plain.clean(written), before


HOSTILE_PREFIXES = [
    *("eyJ-", "xoxb-", "sk-", "Z2hwX", "ZXlKaGJHY2lPa", "Bearer ", "-----BEGIN PRIVATE KEY-----\n"),
    *("%25", "&amp;amp;", "\\", "\\u0041", "\n", "hf_", "glpat-a ", "eyJaaaaaaaaa."),
]


@each("piece", HOSTILE_PREFIXES)
def test_a_text_of_many_token_prefixes_is_searched_in_time(piece: str) -> None:
    """A search that grew with the square of such a text would not come back from this one."""
    text = piece * (300_000 // len(piece))

    assert isinstance(REDACTOR.clean(text), str)


def test_a_token_among_very_many_token_prefixes_is_redacted() -> None:
    """When the search reaches its limit, it redacts instead of letting text through."""
    token = TOKENS[-4][1]

    assert token[:30] not in REDACTOR.clean(f"{'sk- Z2hwX ' * 30_000} {token}")


def test_prefixes_before_a_long_text_do_not_slow_down_its_search() -> None:
    """A search of the whole rest for each form took a hundred times as long, and held the loop."""
    prefixes = "".join(f"{token[:9]}! " for _, token in TOKENS)
    text = prefixes * 300 + "The quick brown fox jumps over the lazy dog. " * 150_000
    plain = Redactor({})
    plain.spans(text[:9_000].encode())

    began = time.thread_time()
    plain.spans(text.encode())

    assert time.thread_time() - began < 0.5 * slowness()


@pytest.mark.requirement("P13")
@given(
    st.lists(
        st.sampled_from([*HOSTILE_PREFIXES, *(token for _, token in TOKENS), " ", "-", "a", "."]),
        max_size=40,
    ),
    st.sampled_from(
        ["sk-", "eyJ", "ghp_", "SG.", "AKIA", "xoxb-", "Bearer ", "-----BEGIN ", "glpat-"]
    ),
)
def test_a_search_that_leaves_out_prefixes_finds_the_same(pieces: list[str], prefix: str) -> None:
    """Behind very many prefixes of a form, each of which begins no token, they are left out."""
    misses = f"({prefix}) " * 400
    text = "|" + "".join(pieces)
    first = len(misses)

    spans = Redactor({}).spans(text.encode())

    found = [span for span in Redactor({}).spans((misses + text).encode()) if span.end > first]
    assert [(span.start - first, span.end - first, span.name) for span in found] == [
        (span.start, span.end, span.name) for span in spans
    ]


PLAIN_PIECES = [b"ghp_", b"0a" * 20, b"86427531", b"8642", b"7531", b"Bearer ", b"a word"]
BREAKS_AND_ESCAPES = [b"\n", b"\r\n  ", b"  ", b"%", b"&", b"\\", b'"', b"\\n", b"&#56;"]
TEXT_PIECES = st.sampled_from([*PLAIN_PIECES, *BREAKS_AND_ESCAPES])


@given(st.lists(TEXT_PIECES, max_size=12).map(b"".join), st.sampled_from([REDACTOR, Redactor({})]))
def test_one_search_agrees_with_a_search_of_every_decoding(text: bytes, redactor: Redactor) -> None:
    """The escape behind the text makes the redactor read every decoding of it."""
    longer = text + b" . " + b"%41"
    spans = [span for span in redactor.spans(longer) if span.start < len(text)]

    assert not (redactor.surely_clear(text) and spans)
    assert redactor.clear(text) == (not redactor.spans(text))
