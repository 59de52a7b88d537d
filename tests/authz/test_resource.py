"""The resource: its addresses come from configuration, byte for byte."""

import pytest

from gatepost_authz.protected_resource import Resource
from tests.support.measuring import each

WELL_KNOWN = "/.well-known/oauth-protected-resource"
VECTORS = [
    # resource, path of its document by RFC 9728 section 3.1, where the challenge points
    ("https://h", WELL_KNOWN, f"https://h{WELL_KNOWN}"),
    ("https://h/", WELL_KNOWN, f"https://h{WELL_KNOWN}"),
    ("https://h/mcp", f"{WELL_KNOWN}/mcp", f"https://h/mcp{WELL_KNOWN}"),
    ("https://h/mcp/", f"{WELL_KNOWN}/mcp/", f"https://h/mcp{WELL_KNOWN}"),
    (
        "https://h:8443/t/acme/mcp",
        f"{WELL_KNOWN}/t/acme/mcp",
        f"https://h:8443/t/acme/mcp{WELL_KNOWN}",
    ),
    ("https://h/mcp?v=2", f"{WELL_KNOWN}/mcp", f"https://h/mcp{WELL_KNOWN}"),
]


@pytest.mark.requirement("A4", "A-04")
@pytest.mark.parametrize(("url", "inserted", "advertised"), VECTORS)
def test_the_metadata_urls_of_a_resource_are_derived_from_its_url(
    url: str, inserted: str, advertised: str
) -> None:
    """Only a slash right after the host is dropped."""
    resource = Resource(url)
    target = resource.locate("/whatever")

    assert inserted in resource.metadata_paths
    assert target is not None
    assert (target.url, target.metadata_url, target.tenant) == (url, advertised, None)


@pytest.mark.requirement("A4")
def test_an_origin_has_one_metadata_location_and_a_path_has_two() -> None:
    """For a root resource both locations are the same path."""
    assert Resource("https://h").metadata_paths == (WELL_KNOWN,)
    assert Resource("https://h/mcp").metadata_paths == (f"/mcp{WELL_KNOWN}", f"{WELL_KNOWN}/mcp")


def test_a_template_gives_every_tenant_its_own_resource() -> None:
    """The tenant in the path decides audience and metadata."""
    target = Resource("https://h:8443/t/{tenant}/mcp").locate("/t/acme/mcp")

    assert target is not None
    assert target.tenant == "acme"
    assert target.url == "https://h:8443/t/acme/mcp"
    assert target.metadata_url == f"https://h:8443/t/acme/mcp{WELL_KNOWN}"


@pytest.mark.requirement("W15")
@each(
    "path",
    [
        "/",
        "/mcp",
        "/t//mcp",
        "/t/ACME/mcp",
        "/t/acme/mcp/",
        "/t/acme/mcp\n",
        "/t/acme/../globex/mcp",
        "/t/acme%2fglobex/mcp",
        "/t/-acme/mcp",
        f"/t/{'a' * 64}/mcp",
        "/x/t/acme/mcp",
        "/t/acme/mcp/tools",
        "/t/аcme/mcp",  # noqa: RUF001 - a Cyrillic a
    ],
)
def test_a_path_that_does_not_match_the_template_has_no_resource(path: str) -> None:
    """The segment must match the grammar of tenants without normalisation."""
    assert Resource("https://h/t/{tenant}/mcp").locate(path) is None


@pytest.mark.requirement("W21")
@pytest.mark.parametrize("tail", ['"', "\\", " ", "\r\nX: y", "\t", "é", "%20"])
def test_a_resource_url_that_could_break_a_header_is_refused(tail: str) -> None:
    """Every challenge contains the URL."""
    with pytest.raises(ValueError, match="cannot be a resource"):
        Resource(f"https://h/mcp{tail}")
