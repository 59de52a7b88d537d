"""Many URI templates and tools of a tenant do not delay the requests of others."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.mcp.listing import OfferLists
from gatepost.mcp.request import NO_PARAMS
from gatepost.secrets.keyring import KeyRing
from gatepost.tools.calls import registry as registry_module
from gatepost.tools.calls.registry import Registry
from gatepost.tools.offers.offer import Offer
from gatepost.tools.offers.template_index import TemplateIndex
from gatepost.tools.offers.tenant_offers import TenantOffers
from gatepost.tools.offers.uri_template import UriTemplate
from gatepost.upstreams.upstream_offers import merged
from tests.support.endpoint import a_caller
from tests.support.measuring import functions_called
from tests.upstreams.conftest import tool
from tests.upstreams.test_offers import offers_of, registered

COMPARE = "UriTemplate.match_valid"
TEMPLATE_PATHS = st.sampled_from(["a", "b", "ab", "a/b", "{x}", "a/{x}", "{x}/b", "{+x}", "a{x}"])


class StaticSource:
    """The offers of every tenant."""

    def __init__(self, offers: tuple[Offer, ...]) -> None:
        self.offers = TenantOffers(offers)

    def at_hand(self, caller: object) -> TenantOffers:
        return self.offers

    async def load(self, caller: object) -> TenantOffers:
        return self.offers


def index_of(*texts: str) -> TemplateIndex[str]:
    index = TemplateIndex[str]()
    for text in texts:
        index.add(UriTemplate(text), text)
    return index


@given(st.lists(TEMPLATE_PATHS, unique=True, max_size=9), st.text("ab/", max_size=8))
def test_the_index_finds_what_a_comparison_with_all_templates_finds(
    paths: list[str], path: str
) -> None:
    """In the order in which they were added."""
    texts = [f"x://{one}" for one in paths if "{" in one]
    index, uri = index_of(*texts), f"x://{path}"

    assert list(index.matching(uri)) == [
        text for text in texts if UriTemplate(text).match(uri) is not None
    ]
    for text in texts:
        head = UriTemplate(text).head
        heads = {UriTemplate(other).head for other in texts}
        begun = {other for other in heads if other.startswith(head) or head.startswith(other)}
        assert {UriTemplate(other).head for other in index.related(head)} == begun


def test_a_uri_is_compared_only_with_templates_that_begin_as_it_does() -> None:
    """A thousand templates of each server would be compared with the resources of all others."""
    index = index_of(*(f"x://{number}/{{x}}" for number in range(100, 900)))

    called = functions_called(lambda: list(index.matching("x://500/a")))

    assert called.count(COMPARE) == 1


def test_a_resource_is_compared_with_at_most_a_hundred_templates_of_another_server() -> None:
    """Beyond that it belongs to the server whose templates begin as it does."""
    first, second = registered("first"), registered("second")
    templates = [{"name": f"t{n}", "uriTemplate": f"x://a/{{v}}/{n}/{{w}}"} for n in range(300)]
    resources = [{"name": f"r{n}", "uri": f"x://{'a' * (n % 2)}/{n}"} for n in range(20)]
    servers = [offers_of(first, templates=templates), offers_of(second, resources=resources)]

    called = functions_called(lambda: merged(servers))
    offers, left_out = merged(servers)

    assert called.count(COMPARE) == 10 * 100
    assert len(offers) == 310
    assert {one.key for one in left_out["id-second"]} == {f"x://a/{n}" for n in range(1, 20, 2)}


def _registry(count: int) -> Registry:
    servers = [
        offers_of(registered(f"s{at}"), tools=[tool(f"t{n}") for n in range(count // 2)])
        for at in range(2)
    ]
    return Registry([], source=StaticSource(merged(servers)[0]))


def test_what_callers_see_of_many_offers_is_found_out_in_a_thread() -> None:
    """A tenant's servers can list two hundred thousand tools, and change their lists often."""
    registry, caller = _registry(400), a_caller()

    called = functions_called(lambda: asyncio.run(registry.prepare(caller)))
    first = registry.visible(caller)

    assert "VisibleOffers.__init__" not in called
    assert len(first.tools) == 400
    assert "VisibleOffers.__init__" not in functions_called(lambda: registry.visible(caller))


async def test_what_could_not_be_found_out_is_found_out_at_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A failure, as that to start a thread, must not last as long as the tenant's offers."""
    registry, caller = _registry(400), a_caller()

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(registry_module, "VisibleOffers", fail)
        for _ in range(2):
            with pytest.raises(RuntimeError):
                await registry.prepare(caller)
    await asyncio.gather(*(registry.prepare(caller) for _ in range(3)))

    assert len(registry.visible(caller).tools) == 400


def test_a_long_list_is_encoded_in_a_thread() -> None:
    """The definitions of a tenant may have many megabytes."""
    registry, caller = _registry(400), a_caller()
    lists = OfferLists(registry, keyring=KeyRing.ephemeral(), meta=b"", page_size=50)

    async def page() -> bytes:
        await registry.prepare(caller)
        return await lists.page("tools", caller, NO_PARAMS, "2025-06-18")

    called = functions_called(lambda: asyncio.run(page()))

    assert "OfferLists._list" not in called
    assert b'"nextCursor"' in asyncio.run(page())
