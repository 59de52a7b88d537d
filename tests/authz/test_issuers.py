"""Which issuers are trusted, and which tokens could open a tenant's resource."""

import pytest

from gatepost_authz.config import Issuer, TenantRule
from gatepost_authz.issuers import IssuerRegistry
from gatepost_authz.presets import Preset
from tests.authz.conftest import ISSUER, RIVAL_ISSUER, issuer
from tests.support.measuring import each

GUID = "6e5a9c1c-0f4b-4d3e-9b1a-2c3d4e5f6a7b"
TEMPLATE = "https://login.example/{tid}/v2.0"
PRESETS = {
    "generic": Preset(name="generic", documentation="https://example.com"),
    "many": Preset(
        name="many",
        documentation="https://example.com",
        issuer_pattern=TEMPLATE,
        segment_claim="tid",
        segment_pattern=r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}",
    ),
}


def templated(name: str = TEMPLATE, **changes: object) -> Issuer:
    usual = {"tenant": TenantRule(issuer=True), "tenants": {}}
    return issuer(name, **usual | changes)


def registry(*issuers: Issuer) -> IssuerRegistry:
    return IssuerRegistry(issuers, presets=PRESETS)


@pytest.mark.requirement("C09", "C10")
@each(
    "name",
    [
        *("", ISSUER + "/", ISSUER[:-1], ISSUER + "x", ISSUER.upper(), "http" + ISSUER[5:]),
        *(f" {ISSUER}", ISSUER + "\n", ISSUER + ":443"),
        *("https://id.ex\u0430mple.com", "https://id%2eexample.com"),
    ],
)
def test_an_issuer_name_is_compared_byte_for_byte(name: str) -> None:
    """No normalisation is made, and a longer or shorter name does not match."""
    assert registry(issuer()).find(ISSUER) is not None
    assert registry(issuer()).find(name) is None


@pytest.mark.requirement("C12")
@each(
    "name",
    [
        TEMPLATE,
        "https://login.example/a/b/v2.0",
        "https://login.example//v2.0",
        "https://login.example/a%2Fb/v2.0",
        "https://login.example/../v2.0",
        "https://login.example/a b/v2.0",
        "https://login.example/a\n/v2.0",
        "https://login.example/a/v2.0\n",
        "https://login.example/a/v2.0/",
        "https://login.example/a/v2x0",
        "https://login.example.evil/a/v2.0",
        "https://evil/https://login.example/a/v2.0",
        "https://login.example/a?x=/v2.0",
        "https://login.example/a#/v2.0",
        "https://login.example/a@evil/v2.0",
        "https://login.example/\u0430/v2.0",
        "https://login.example/\uff11/v2.0",
        f"https://login.example/{'a' * 65}/v2.0",
    ],
)
def test_an_issuer_template_matches_exactly_one_plain_segment(name: str) -> None:
    """The pattern covers the whole name and allows few characters."""
    trusted = registry(templated()).find("https://login.example/acme/v2.0")
    assert trusted is not None
    assert trusted[1] == "acme"
    assert registry(templated()).find(name) is None


@pytest.mark.requirement("C12")
def test_a_preset_can_restrict_the_template_segment() -> None:
    """Entra's tenants are lower-case GUIDs, also in an exact issuer name."""
    many = registry(templated(preset="many"))
    exact = registry(issuer(f"https://login.example/{GUID}/v2.0", preset="many"))

    for issuers in (many, exact):
        trusted = issuers.find(f"https://login.example/{GUID}/v2.0")
        assert trusted is not None
        assert trusted[1] == GUID
    assert many.find("https://login.example/acme/v2.0") is None
    assert many.find(f"https://login.example/{GUID.upper()}/v2.0") is None


@pytest.mark.requirement("C12")
@each(
    "name",
    [
        "https://{tid}/v2.0",
        "https://{tid}.login.example",
        "https://login.example{tid}",
        "https://login.example/x{tid}",
        "https://login.example/{tid}x",
        "https://login.example/{tid}/{org}",
        "https://login.example/{}",
        "https://login.example/{t-d}",
        "https://login.example/{tid",
        "https://login.example/{{tid}}",
    ],
)
def test_a_template_without_one_whole_open_segment_is_refused(name: str) -> None:
    """An open host would trust each owner of a name below it."""
    with pytest.raises(ValueError, match="segment"):
        registry(templated(name))


def test_an_exact_name_wins_over_a_template() -> None:
    """The operator can give one issuer of a template its own settings."""
    special = issuer("https://login.example/acme/v2.0", audiences=("api://special",))
    trusted = registry(templated(), special).find("https://login.example/acme/v2.0")

    assert trusted is not None
    assert trusted[0].audiences == {"api://special"}


def test_duplicate_issuers_and_unknown_presets_are_refused() -> None:
    """Both are errors of the configuration."""
    with pytest.raises(ValueError, match="twice"):
        registry(issuer(), issuer())
    with pytest.raises(ValueError, match="preset"):
        registry(issuer(preset="unknown"))


@pytest.mark.requirement("N18")
def test_every_issuer_registry_has_its_own_generation() -> None:
    """A verdict of one configuration is never used under another."""
    assert len({registry(issuer()).generation for _ in range(10)}) == 10


def test_the_algorithms_setting_replaces_the_list_of_the_preset() -> None:
    """Longer hashes must be allowed explicitly; `Ed25519` also allows `EdDSA`."""
    trusted = registry(issuer(algorithms=("ES384", "Ed25519"))).find(ISSUER)
    assert trusted is not None
    assert trusted[0].algorithms == {"ES384", "Ed25519", "EdDSA"}


@each(
    ("name", "loopback"),
    [
        ("http://127.0.0.1:8000/dev-as", True),
        ("http://localhost:8000/dev-as", True),
        ("http://LOCALHOST./x", True),
        ("http://id.localhost", True),
        ("http://[::1]:8000", True),
        ("http://127.9.9.9", True),
        ("http://0.0.0.0:8000", True),
        ("http://[::ffff:127.0.0.1]", True),
        ("https://localhost.example.com", False),
        ("https://127.0.0.1.example.com", False),
        (ISSUER, False),
    ],
)
def test_an_issuer_on_this_machine_is_recognised(name: str, loopback: bool) -> None:
    """Only a development issuer lives there."""
    assert registry(issuer(name)).issuers[0].loopback is loopback


ISSUERS_WITH_TENANTS = registry(
    issuer(RIVAL_ISSUER, tenants={"1": "globex", "2": "shared"}),
    issuer(ISSUER, tenant=TenantRule(value="acme"), tenants={}),
    issuer("https://both.example", tenants={"x": "shared", "y": "acme"}),
    issuer("https://open.example", tenants={}),
)


@pytest.mark.parametrize(
    ("tenant", "issuers"),
    [
        (None, (RIVAL_ISSUER, ISSUER, "https://both.example", "https://open.example")),
        ("globex", (RIVAL_ISSUER,)),
        ("acme", (ISSUER, "https://both.example")),
        ("shared", (RIVAL_ISSUER, "https://both.example")),
        ("initech", ("https://open.example",)),
    ],
)
def test_the_metadata_of_a_tenant_lists_the_issuers_that_serve_it(
    tenant: str | None, issuers: tuple[str, ...]
) -> None:
    """Some clients use only the first issuer, so it must be accepted for the tenant."""
    assert ISSUERS_WITH_TENANTS.for_tenant(tenant) == issuers


def test_a_template_is_listed_with_the_segment_of_the_tenant() -> None:
    """Clients compare the issuer byte for byte and cannot use a template."""
    free = registry(templated())
    mapped = registry(templated(tenants={"abc": "acme"}))

    assert free.for_tenant(None) == ()
    assert free.for_tenant("acme") == ("https://login.example/acme/v2.0",)
    assert mapped.for_tenant("acme") == ("https://login.example/abc/v2.0",)
    assert mapped.for_tenant("abc") == ()
    assert registry(templated(preset="many")).for_tenant("acme") == ()
