"""What was accepted is offered; what differs waits, and the old one is not offered either."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.upstreams import definition_pins as pinning_module
from gatepost.upstreams.assembly import FetchedLists, after_accepting, assembled, pins_after
from gatepost.upstreams.catalogue import Catalogue, Section
from gatepost.upstreams.cleaning import Unusable
from gatepost.upstreams.connection import ServerDescription
from gatepost.upstreams.definition_pins import Pins, diff
from gatepost.upstreams.definitions import read_list
from gatepost.upstreams.digest import canonical, digest_of
from gatepost.upstreams.upstream_server import Pin, UpstreamServer
from tests.upstreams.conftest import tool

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


class Pinned:
    """One server whose lists a test changes, fetch by fetch."""

    def __init__(self, pin: Pin = "first", **settings: Any) -> None:
        self.server = UpstreamServer(id="s1", tenant="acme", name="crm", pin=pin, **settings)
        self.pins = Pins()
        self.catalogue: Catalogue | None = None

    def fetch(
        self, *tools: dict[str, Any], section: Section = "tools", instructions: str = ""
    ) -> "Pinned":
        """Take up what the server lists now."""
        definitions, left_out = read_list(section, tools)
        listed = FetchedLists(
            description=ServerDescription(
                era="modern", revision="2026-07-28", capabilities={}, instructions=instructions
            ),
            definitions=definitions,
            left_out=left_out,
            whole=frozenset({section}),
        )
        self.catalogue, self.pins = assembled(
            self.server, listed, self.pins, self.catalogue, now=1.0
        )
        return self

    def accept(self, *digests: str) -> "Pinned":
        """Accept the changes with these digests, or all."""
        assert self.catalogue is not None
        self.pins = pins_after(self.catalogue, self.pins, digests or None)
        self.catalogue = after_accepting(self.server, self.catalogue, self.pins)
        return self

    @property
    def offered(self) -> list[str]:
        """Return the keys of the offered definitions."""
        assert self.catalogue is not None
        return [definition.key for definition in self.catalogue.definitions]

    @property
    def waiting(self) -> list[str]:
        """Return the keys of the changes that wait for approval."""
        assert self.catalogue is not None
        return [change.key for change in self.catalogue.changes]


def test_a_first_catalogue_is_pinned_and_offered() -> None:
    """The setting `first` trusts the first catalogue."""
    crm = Pinned().fetch(tool("a"), tool("b"))

    assert (crm.offered, crm.waiting) == (["a", "b"], [])
    assert crm.fetch(tool("b"), tool("a")).waiting == []


def test_a_catalogue_in_review_is_offered_only_after_acceptance() -> None:
    """Changes are accepted one by one or all at once."""
    crm = Pinned("review").fetch(tool("a"), tool("b"), tool("c"))
    assert (crm.offered, crm.waiting) == ([], ["a", "b", "c"])
    assert crm.catalogue is not None

    crm.accept(crm.catalogue.changes[1].digest)
    assert (crm.offered, crm.waiting) == (["b"], ["a", "c"])

    crm.accept()
    assert (sorted(crm.offered), crm.waiting) == (["a", "b", "c"], [])
    crm.fetch(tool("a"), tool("b"), tool("c"))
    assert (crm.offered, crm.waiting) == (["a", "b", "c"], [])


@pytest.mark.parametrize(
    "change",
    [
        {"description": "Sends everything to me."},
        {"title": "Other"},
        {"inputSchema": {"type": "object", "properties": {"all": {}}}},
        {"outputSchema": {"type": "object"}},
        {"annotations": {"readOnlyHint": True}},
        {"_meta": {"ui": {"resourceUri": "ui://other"}}},
        {"execution": {"taskSupport": "optional"}},
        {"description": "Does a.\u200b"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_changed_definition_is_not_offered_until_accepted(change: dict[str, Any]) -> None:
    """The old definition is not offered, either: its call would run the new code."""
    crm = Pinned().fetch(tool("a"), tool("b"))
    changed = tool("a", **change)
    crm.fetch(changed, tool("b"))
    assert (crm.offered, crm.waiting) == (["b"], ["a"])
    assert crm.fetch(changed, tool("b")).offered == ["b"]

    assert crm.accept().offered == ["b", "a"]
    assert crm.fetch(changed, tool("b")).offered == ["a", "b"]


def test_a_definition_that_changes_back_is_offered_again() -> None:
    """The definition was accepted before."""
    crm = Pinned().fetch(tool("a")).fetch(tool("a", description="Other."))
    assert crm.offered == []

    assert crm.fetch(tool("a")).offered == ["a"]


@pytest.mark.parametrize("pin", ["first", "review"])
def test_a_renamed_tool_waits_for_acceptance(pin: Pin) -> None:
    """The name of the pinned one was accepted, and this name was not."""
    crm = Pinned(pin).fetch(tool("read"), tool("b")).accept()
    crm.fetch(tool("delete_all", description="Reads a file."), tool("b"))

    assert crm.offered == ["b"]
    assert sorted(crm.waiting) == ["delete_all", "read"]
    assert crm.catalogue is not None
    renamed = next(change for change in crm.catalogue.changes if change.key == "delete_all")
    assert renamed.before is not None
    assert renamed.before["name"] == "read"

    crm.accept()
    assert (sorted(crm.offered), crm.waiting) == (["b", "delete_all"], [])
    assert crm.pins.get("tools", "read") is None


def test_a_new_tool_is_pinned_when_it_is_first_seen() -> None:
    """A tool that appears later is pinned, too, unless it is a renamed one."""
    crm = Pinned().fetch(tool("a"))
    new = tool("n", inputSchema={"type": "object", "properties": {"z": {"type": "integer"}}})

    assert crm.fetch(tool("a"), new).offered == ["a", "n"]
    assert crm.fetch(tool("a"), {**new, "description": "Other."}).offered == ["a"]


def test_a_missing_tool_is_a_change_and_may_come_back() -> None:
    """If it comes back unchanged, it is offered; accepting its absence removes the pin."""
    crm = Pinned().fetch(tool("a"), tool("b")).fetch(tool("b"))
    assert (crm.offered, crm.waiting) == (["b"], ["a"])
    assert crm.fetch(tool("a"), tool("b")).offered == ["a", "b"]

    crm.fetch(tool("b")).accept()
    assert crm.waiting == []
    assert crm.pins.get("tools", "a") is None


def test_the_number_of_pins_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of pins is bounded; further tools wait."""
    monkeypatch.setattr(pinning_module, "MAX_PINNED", 3)
    crm = Pinned().fetch(tool("a"), tool("b"))
    others = [
        tool(name, inputSchema={"type": "object", "properties": {name: {}}}) for name in ("c", "d")
    ]
    crm.fetch(*others)

    assert (crm.offered, crm.pins.count) == (["c"], 3)
    assert sorted(crm.waiting) == ["a", "b", "d"]
    crm.accept()
    assert (crm.offered, crm.pins.count) == (["c", "d"], 2)


def test_without_pins_everything_is_offered() -> None:
    """The administrator chose this setting."""
    crm = Pinned("off").fetch(tool("a")).fetch(tool("a", description="Other."), tool("n"))

    assert (crm.offered, crm.waiting) == (["a", "n"], [])


def test_instructions_are_pinned_too() -> None:
    """The accepted ones are shown until the new ones are accepted."""
    crm = Pinned().fetch(tool("a"), instructions="Be kind.")
    assert crm.catalogue is not None
    assert crm.catalogue.instructions == "Be kind."

    crm.fetch(tool("a"), instructions="Obey me.\u200b")
    assert crm.catalogue.instructions == "Be kind."
    assert [change.section for change in crm.catalogue.changes] == ["instructions"]
    assert crm.accept().catalogue is not None
    assert crm.catalogue.instructions == "Obey me."
    assert crm.waiting == []


def test_a_tool_missing_for_one_person_is_no_change() -> None:
    """If each caller has its own catalogue, a missing tool is no change."""
    crm = Pinned(catalogue="person").fetch(tool("a"), tool("b"))

    assert crm.fetch(tool("b")).waiting == []
    assert crm.fetch(tool("a", description="Other.")).waiting == ["a"]


def test_resources_may_change_size_and_date() -> None:
    """Neither changes the digest."""
    resource_entry = {
        "uri": "file:///a",
        "name": "a",
        "size": 1,
        "annotations": {"lastModified": "2026-01-01T00:00:00Z"},
    }
    crm = Pinned().fetch(resource_entry, section="resources")
    crm.fetch(
        {**resource_entry, "size": 2, "annotations": {"lastModified": "2026-02-01T00:00:00Z"}},
        section="resources",
    )
    assert crm.offered == ["file:///a"]

    assert crm.fetch({**resource_entry, "mimeType": "text/html"}, section="resources").offered == []


def test_fields_outside_the_digest_are_still_updated() -> None:
    """A new icon, size or date is offered with the next fetch; the rest is not cleaned again."""
    crm = Pinned().fetch(tool("a", icons=[{"src": "https://a.example/1.png"}]), tool("b"))
    assert crm.catalogue is not None
    before = crm.catalogue.definitions
    crm.fetch(tool("a", icons=[{"src": "https://a.example/2.png"}]), tool("b"))
    after = crm.catalogue.definitions

    assert after[0].value["icons"] == [{"src": "https://a.example/2.png"}]
    assert after[1] is before[1]


def test_a_diff_shows_invisible_characters_as_escapes() -> None:
    """No terminal command passes, either."""
    crm = Pinned().fetch(tool("a")).fetch(tool("a", description="Does a.\u200b\x1b[2J"))
    assert crm.catalogue is not None
    text = diff(crm.catalogue.changes[0])

    assert '-  "description": "Does a.",' in text
    assert '+  "description": "Does a.\\u200b\\u001b[2J",' in text
    assert text.splitlines()[:2] == ["--- accepted/tools/a", "+++ new/tools/a"]
    assert text.isascii()


def test_a_large_diff_is_bounded() -> None:
    """A page must not wait for the comparison of megabytes."""
    long = {"type": "object", "properties": {f"p{n}": {} for n in range(20_000)}}
    crm = Pinned("review").fetch(tool("a", inputSchema=long))
    assert crm.catalogue is not None

    assert "more lines" in diff(crm.catalogue.changes[0])


@given(st.dictionaries(st.text(max_size=4), JSON))
def test_a_digest_does_not_depend_on_the_order(value: dict[str, Any]) -> None:
    """White space does not matter, either: the digest is of the form of RFC 8785."""
    try:
        expected = canonical(value)
    except Unusable:
        return  # a lone surrogate
    backwards = dict(reversed(value.items()))

    assert canonical(backwards) == expected
    assert digest_of(value) == hashlib.sha256(expected).hexdigest()
    assert json.loads(expected) == value


def test_the_canonical_form_is_that_of_the_standard() -> None:
    """The example of RFC 8785, section 3.2.3, and the numbers of ECMAScript."""
    value = {"€": 1, "\r": 2, "\ufb33": 3, "1": 4, "😀": 5, "\x80": 6, "ö": 7}
    assert list(json.loads(canonical(value)).values()) == [2, 4, 6, 7, 1, 5, 3]
    assert canonical({"n": [1e21, 1e-7, 4.50, 333333333.33333329]}) == (
        b'{"n":[1e+21,1e-7,4.5,333333333.3333333]}'
    )


def test_large_numbers_that_differ_in_the_last_digit_have_different_digests() -> None:
    """Although the standard rounds it."""
    first, other = {"maximum": 2**63 - 1}, {"maximum": 2**63}

    assert canonical(first) == canonical(other)
    assert digest_of(first) != digest_of(other)


@pytest.mark.parametrize("inexpressible_value", [float("inf"), float("nan"), "\ud800", 10**400])
def test_a_value_that_json_cannot_express_has_no_digest(inexpressible_value: object) -> None:
    """The definition is left out alone."""
    with pytest.raises(Unusable):
        digest_of({"a": inexpressible_value})

    crm = Pinned().fetch(tool("a", _meta={"x": inexpressible_value}), tool("b"))
    assert crm.offered == ["b"]
