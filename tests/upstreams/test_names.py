"""`mcp_{server}__{tool}`: valid, stable, and never the same for two tools."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gatepost.tools.offers.offer import OFFER_NAME
from gatepost.tools.offers.tenant_offers import is_upstream_name
from gatepost.upstreams.offered_names import offered_name, server_scope
from gatepost_authz.challenge import words

SIMILAR_NAMES = st.text(alphabet="aAbß_-. 1é", min_size=1, max_size=12)
ANY_NAME = st.text(min_size=1, max_size=255)
PAIRS = st.tuples(SIMILAR_NAMES | ANY_NAME, SIMILAR_NAMES | ANY_NAME)


@pytest.mark.requirement("E2")
@pytest.mark.parametrize(
    ("server", "tool", "name"),
    [
        ("github", "search_repos", "mcp_github__search_repos"),
        ("microsoft_learn", "search", "mcp_microsoft_learn__search"),
        ("atlassian_jira", "create_issue", "mcp_atlassian_jira__create_issue"),
        ("a", "_b", "mcp_a___b"),
        ("a", "b__c", "mcp_a__b__c"),
        ("a", "get_messages", "mcp_a__get_messages"),
    ],
)
def test_names_that_fit_are_kept(server: str, tool: str, name: str) -> None:
    """The names are those of the documentation."""
    assert offered_name(server, tool) == name


@pytest.mark.parametrize(
    ("server", "tool", "head"),
    [
        ("GitHub", "search", "mcp_github__search_"),
        ("github", "search-repos", "mcp_github__search_repos_"),
        ("github", "getUser", "mcp_github__getuser_"),
        ("a__b", "c", "mcp_a_b__c_"),
        ("a_", "b", "mcp_a__b_"),
        ("a", "b_0123abcd", "mcp_a__b_0123abcd_"),
        ("日本", "検索", "mcp_x__x_"),
        ("github", "x" * 80, "mcp_github__" + "x" * 43 + "_"),
    ],
)
def test_other_names_end_in_a_hash(server: str, tool: str, head: str) -> None:
    """Eight characters of it, after as much of the name as fits."""
    name = offered_name(server, tool)

    assert name.startswith(head)
    assert re.fullmatch(r"[0-9a-f]{8}", name.removeprefix(head))
    assert len(name) <= 64


@given(PAIRS, PAIRS)
@example(("a", "b__c"), ("a__b", "c"))
@example(("a_", "b"), ("a", "_b"))
@example(("A", "b"), ("a", "b"))
@example(("\ud800", "b"), ("\ud801", "b"))
def test_no_two_tools_have_the_same_name(first: tuple[str, str], second: tuple[str, str]) -> None:
    """The names of their servers do not matter."""
    assert (offered_name(*first) == offered_name(*second)) == (first == second)


@given(PAIRS)
def test_each_name_is_valid_and_stays(pair: tuple[str, str]) -> None:
    """Clients, headers and metrics accept it, and no pack's tool can have it."""
    name = offered_name(*pair)

    assert OFFER_NAME.fullmatch(name)
    assert is_upstream_name(name)
    assert offered_name(*pair) == name


@given(PAIRS)
def test_a_plain_name_never_equals_a_hashed_one(pair: tuple[str, str]) -> None:
    """A server cannot name a tool like the tool of another server that ends in a hash."""
    hashed = offered_name("Server", pair[1])

    assert offered_name("server", hashed.removeprefix("mcp_server__")) != hashed


@given(SIMILAR_NAMES | ANY_NAME)
def test_every_server_scope_is_valid_in_a_challenge(server: str) -> None:
    """This holds for a server whose name has blanks or quotes, too."""
    words([server_scope(server)])


def test_the_scope_of_a_server_is_its_name() -> None:
    """A name that cannot stand in a scope gets a readable form with a suffix."""
    assert server_scope("github") == "mcp:github"
    assert server_scope("my server").startswith("mcp:my_server_")
    assert server_scope("my server") != server_scope("my-server ")


@pytest.mark.parametrize("name", ["read_file", "mcp_status", "amcp_a__b"])
def test_names_of_packs_are_no_upstream_names(name: str) -> None:
    """Only names in the form of upstreams are reserved."""
    assert not is_upstream_name(name)
