"""URI templates: what they match, what they refuse, and that both ways agree."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.tools.offers.uri_template import MAX_CHARACTERS, UriTemplate
from tests.support.measuring import count_lines, each

TEMPLATE_MATCHES: list[tuple[str, str, dict[str, str] | None]] = [
    ("report://{q}", "report://q1", {"q": "q1"}),
    ("report://{q}", "report://a%20b", {"q": "a b"}),
    ("report://{q}", "report://%2e%2e%2f", None),
    ("report://{q}", "report://..", None),
    ("report://{q}", "report://%2E%2E", None),
    ("report://{q}", "report://%252e%252e", {"q": "%2e%2e"}),
    ("report://{q}", "report://a/b", None),
    ("report://{q}", "report://a%2fb", None),
    ("report://{q}", "report://a?b=c", None),
    ("report://{q}", "REPORT://a", None),
    ("x://{a}/{b}.csv", "x://1/2.csv", {"a": "1", "b": "2"}),
    ("x://{a}/{b}.csv", "x://1/2.csv.csv", {"a": "1", "b": "2.csv"}),
    ("x://{a}/{b}.csv", "x://1/.csv", None),
    ("x://{a}/{b}.csv", "x:///2.csv", None),
    ("x://{a}-{b}", "x://1-2-3", {"a": "1", "b": "2-3"}),
    ("f://{+path}", "f://a/b/c", {"path": "a/b/c"}),
    ("f://{+path}", "f://a/./c", None),
    ("f://{+path}", "f://a/", None),
    ("f://{+path}", "f://a%2F..%2Fb", None),
    ("f://{+path}/meta", "f://a/b/meta", {"path": "a/b"}),
    ("f://{+path}/meta", "f:///meta", None),
    ("f://{t}/{+path}", "f://a/b/c", {"t": "a", "path": "b/c"}),
    ("s://all{?q,n}", "s://all", {}),
    ("s://all{?q,n}", "s://all?n=1", {"n": "1"}),
    ("s://all{?q,n}", "s://all?n=1&q=a%2Fb", {"n": "1", "q": "a/b"}),
    ("s://all{?q,n}", "s://all?q=", {"q": ""}),
    ("s://all{?q,n}", "s://all?q=%00", None),
    ("s://all{?q,n}", "s://all?", None),
    ("s://all{?q,n}", "s://all?x=1", None),
    ("mail:{name}", "mail:alice", {"name": "alice"}),
]


@each(("text", "uri", "values"), TEMPLATE_MATCHES)
def test_a_template_matches_in_one_way_or_not_at_all(
    text: str, uri: str, values: dict[str, str] | None
) -> None:
    """Values are decoded once and stay within their segment."""
    assert UriTemplate(text).match(uri) == values


REFUSED_TEMPLATES = [
    ("report/{q}", "begins with a scheme"),
    ("{q}://x", "begins with a scheme"),
    ("x://{q}{r}", "two variables touch"),
    ("x://{q}/{q}", "stands there twice"),
    ("x://{+p}/{q}", "is the last variable"),
    ("x://{/q}", "is not {x}"),
    ("x://{q*}", "is not {x}"),
    ("x://{q:3}", "is not {x}"),
    ("x://{}", "is not {x}"),
    ("x://{q", "not a URI"),
    ("x://a?b={q}", "write the query as"),
    ("x://{?q}/more", "ends a template"),
    ("x://a b/{q}", "not a URI"),
    ("x://a#{q}", "not a URI"),
    ("x://%2{q}0", "not a URI"),
    ("x://{a}/%{q}", "not a URI"),
]


@each(("text", "expected_text"), REFUSED_TEMPLATES)
def test_a_template_that_is_ambiguous_or_unknown_is_refused(text: str, expected_text: str) -> None:
    """The error comes when the template is written, not when it is used."""
    with pytest.raises(
        ValueError, match="(?s)" + expected_text.replace("{", r"\{").replace("?", r"\?")
    ):
        UriTemplate(text)


TEXT = st.text(min_size=1, max_size=12)


@given(a=TEXT, b=TEXT, rest=st.lists(TEXT, min_size=1, max_size=4), q=st.none() | TEXT)
def test_an_expanded_uri_matches_its_template(
    a: str, b: str, rest: list[str], q: str | None
) -> None:
    """Otherwise the expansion fails: a listed URI always leads back to its variables."""
    template = UriTemplate("x://{a}/{b}-{+rest}{?q}")
    values = {"a": a, "b": b, "rest": "/".join(rest), **({} if q is None else {"q": q})}
    try:
        uri = template.expand(values)
    except (ValueError, UnicodeEncodeError):
        return

    assert template.match(uri) == values


PATHS = st.text(alphabet="ab./\\%?#&= \x00\x1f\x7f\x80\x9fé漢😀-_~!$'()*+,;:@\n\ud800", max_size=8)


@each("text", ["x://{a}", "x://{+a}", "file:///{+a}", "x:{a}.md", "x://%20{+a}/b"])
@given(value=PATHS | st.text())
def test_the_only_variable_of_an_expanded_uri_matches_again(text: str, value: str) -> None:
    """Every value that a URI can carry is expanded, and no other."""
    template = UriTemplate(text)
    (variable,) = template.path
    try:
        safe = "/!$&'()*+,;=:@" if variable.spans_segments else ""
        uri = template.head + quote(value, safe=safe) + variable.suffix
        matched = template.match(uri) == {"a": value}
    except UnicodeEncodeError:
        matched = False
    if not matched:
        with pytest.raises(ValueError, match=r"cannot name|surrogates not allowed"):
            template.expand({"a": value})
        return

    assert template.expand({"a": value}) == uri


@given(uri=st.text(alphabet="x:/ab.%2eEfF0-?=&q\x00\\", max_size=30))
def test_no_matched_value_leaves_its_path(uri: str) -> None:
    """A path value consists of plain names between slashes."""
    values = UriTemplate("x://{a}/{+rest}{?q}").match(f"x://{uri}")
    if values is None:
        return
    for name in (values["a"], *values["rest"].split("/")):
        assert name not in ("", ".", "..")
        assert not set(name) & set("/\\\x00\n")
    assert "/" not in values["a"]


def test_matching_takes_linear_time() -> None:
    """Many almost-ends must not be tried one by one (no backtracking)."""
    template = UriTemplate("x://{a}-{b}-{c}-{d}-{e}.end")
    once = count_lines(lambda: template.match("x://a-b-c-d-e.end"))

    assert count_lines(lambda: template.match("x://" + "-" * (MAX_CHARACTERS - 10))) <= once
    assert count_lines(lambda: template.match("x://a" + "-b" * (MAX_CHARACTERS // 2 - 10))) <= once
    assert template.match("x://" + "a" * MAX_CHARACTERS) is None
