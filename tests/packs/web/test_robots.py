"""A site's rules mean what RFC 9309 says."""

import pytest

from gatepost_packs.web.robots import (
    CACHED_CHARACTERS,
    CACHED_SITES,
    KEPT_FAILED_S,
    KEPT_S,
    READ_CHARACTERS,
    RobotsCache,
    SiteRules,
)
from gatepost_packs.web.robots_worker import answer
from tests.support.measuring import each

EVERY_AGENT = "User-agent: *\n"
RULE = "Disallow: /a\n"

RULES = [
    # rules, path, whether it may be asked for
    ("", "/", True),
    ("Disallow: /", "/a", True),
    (EVERY_AGENT + "Disallow: /", "/a", False),
    (EVERY_AGENT + "Disallow:", "/a", True),
    (EVERY_AGENT + "Disallow: /a", "/b", True),
    (EVERY_AGENT + "Disallow: /a", "/ab", False),
    (EVERY_AGENT + "Disallow: /a\nAllow: /a/b", "/a/b/c", True),
    (EVERY_AGENT + "Allow: /a\nDisallow: /a", "/a", True),
    (EVERY_AGENT + "Disallow: /*.gif$", "/x/y.gif", False),
    (EVERY_AGENT + "Disallow: /*.gif$", "/x/y.gif?z", True),
    (EVERY_AGENT + "Disallow: /a*b*c", "/axxbyyc/d", False),
    (EVERY_AGENT + "Disallow: /a*b*c$", "/abcbc", False),
    (EVERY_AGENT + "Disallow: /a$", "/a", False),
    (EVERY_AGENT + "Disallow: /a$", "/ab", True),
    (EVERY_AGENT + "Disallow: /ab$*", "/ab$", False),
    (EVERY_AGENT + "Disallow: /p?q=", "/p?q=1", False),
    (EVERY_AGENT + "Disallow: /ü", "/%C3%BC", False),
    (EVERY_AGENT + "Disallow: /%7Ea", "/~a", False),
    (EVERY_AGENT + "Disallow: /a%2Fb", "/a/b", True),
    (EVERY_AGENT + "Disallow: /a%2fb", "/a%2Fb", False),
    ("User-agent: gatepost\nDisallow: /a\n" + EVERY_AGENT + "Disallow: /", "/b", True),
    ("User-agent: GatePost/2.0\nDisallow: /a\n", "/a", False),
    ("User-agent: gatepostbot\nDisallow: /\n", "/a", True),
    ("User-agent: x\nUser-agent: gatepost\nDisallow: /a", "/a", False),
    ("User-agent: x\nDisallow: /\nUser-agent: gatepost\nAllow: /", "/a", True),
    ("User-agent: gatepost\nDisallow: /a\nUser-agent: gatepost\nDisallow: /b", "/b", False),
    (" user-AGENT :* # all\r\n disallow : /a # x\r\n", "/a", False),
    ("User-agent: g\nAllow: /\n" + EVERY_AGENT + "Disallow: /", "/a", False),
    ("User-agent: gate*\nUser agent gate\nDisallow: /", "/a", True),
    ("User-agent: gatepost/1.0\rDisallow: /a\r", "/a", False),
    ("User-agent: x\rDisallow: /b\r\rUser-agent: gatepost/1.0\rDisallow: /a\r", "/a", False),
    ("Sitemap: x\nCrawl-delay: 9\n" + EVERY_AGENT + "nonsense\nDisallow: /a", "/a", False),
]


@pytest.mark.requirement("P9")
@each(("text", "path", "allowed"), RULES, ids=[str(n) for n in range(len(RULES))])
def test_the_longest_rule_decides(text: str, path: str, allowed: bool) -> None:
    """The rules of the group `gatepost` count if there are any, else those of `*`."""
    url = f"https://www.web.test{path}"

    assert answer({"rules": text, "url": url, "agent": "gatepost"}) is allowed
    assert SiteRules(text, "gatepost").verdict(url) is allowed


@pytest.mark.requirement("P9")
@pytest.mark.parametrize(
    ("text", "path"),
    [
        (EVERY_AGENT + "Disallow: /a\n" + "#" * READ_CHARACTERS, "/"),
        ("User-agent: a\n" * 300 + "Disallow: /a\n" * 300, "/"),
        (EVERY_AGENT + f"Disallow: /*b{'a' * 900}\n" * 9, f"/{'a' * 7_000}"),
    ],
    ids=["long", "many programs", "slow"],
)
def test_rules_that_may_take_long_are_left_to_the_worker(text: str, path: str) -> None:
    """Neither a site nor a caller can keep the server busy with a comparison."""
    url = f"https://www.web.test{path}"

    assert SiteRules(text, "gatepost").verdict(url) is None
    assert answer({"rules": text, "url": url, "agent": "gatepost"}) is True


@pytest.mark.requirement("P9")
def test_rules_are_remembered_for_a_while() -> None:
    """Failures for a shorter one; by tenant; and never more than so many."""
    now = 0.0
    cache = RobotsCache(lambda: now)
    key, other = ("acme", "https://a", "gatepost"), ("globex", "https://a", "gatepost")
    failed, rules = ("acme", "https://b", "gatepost"), SiteRules("", "gatepost")
    cache.put(key, rules)
    cache.put(failed, None)

    assert cache.get(key) == (True, rules)
    assert cache.get(other)[0] is False
    now = KEPT_FAILED_S
    assert cache.get(failed)[0] is False
    assert cache.get(key)[0] is True
    now = KEPT_S
    assert cache.get(key)[0] is False
    cache.put(key, rules)
    for number in range(CACHED_SITES):
        cache.put(("acme", f"https://{number}", "gatepost"), rules)
    assert cache.get(key)[0] is False


@pytest.mark.requirement("P9")
def test_the_total_size_of_cached_robots_rules_is_bounded() -> None:
    """The characters of all sites together are bounded, however few the sites are."""
    cache = RobotsCache()
    long = SiteRules("#" * (CACHED_CHARACTERS // 3), "gatepost")
    keys = [("acme", f"https://{number}", "gatepost") for number in range(4)]
    for key in keys:
        cache.put(key, long)
        cache.put(key, long)

    assert [cache.get(key)[0] for key in keys] == [False, True, True, True]


@pytest.mark.requirement("P9")
def test_read_rules_count_with_their_memory() -> None:
    """A rule of a few characters takes some hundred bytes."""
    few, many = SiteRules(EVERY_AGENT, "gatepost"), SiteRules(EVERY_AGENT + RULE * 500, "gatepost")

    assert many.weight - few.weight > 100 * 500
