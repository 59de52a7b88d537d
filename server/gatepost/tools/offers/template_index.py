"""Find the URI templates that match a URI without comparing it with all of them."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import chain
from typing import Generic, TypeVar

from gatepost.tools.offers.uri_template import UriTemplate, is_uri

T = TypeVar("T")


class TemplateIndex(Generic[T]):
    """
    Templates with a value each, by the literal text at their beginning, their head.

    A tenant's servers may list a thousand templates each. Comparing all of them with all resources
    would take minutes.
    """

    def __init__(self) -> None:
        self._by_head: dict[str, list[tuple[int, UriTemplate, T]]] = {}
        self._heads: list[str] = []
        self._lengths: list[int] = []
        self._count = 0

    def add(self, template: UriTemplate, value: T) -> None:
        """Add a template."""
        head = template.head
        if head not in self._by_head:
            self._by_head[head] = []
            insort(self._heads, head)
            at = bisect_left(self._lengths, len(head))
            if self._lengths[at : at + 1] != [len(head)]:
                self._lengths.insert(at, len(head))
        self._by_head[head].append((self._count, template, value))
        self._count += 1

    def matching(self, uri: str, max_compared: int | None = None) -> Iterator[T]:
        """
        Yield the values of the templates that match, in the order in which they were added.

        After *max_compared* comparisons, all further templates that begin as the URI does count as
        matching.
        """
        if not is_uri(uri):
            return
        groups = list(self._heads_of(uri))
        entries = groups[0] if len(groups) == 1 else sorted(chain(*groups), key=_place)
        for compared, (_, template, value) in enumerate(entries):
            is_compared = max_compared is None or compared < max_compared
            if not is_compared or template.match_valid(uri) is not None:
                yield value

    def related(self, head: str) -> Iterator[T]:
        """Yield a value for each head that begins with *head*, or with which that begins."""
        for group in self._heads_of(head):
            yield group[0][2]
        for at in range(bisect_left(self._heads, head), len(self._heads)):
            if not self._heads[at].startswith(head):
                return
            yield self._by_head[self._heads[at]][0][2]

    def _heads_of(self, text: str) -> Iterator[list[tuple[int, UriTemplate, T]]]:
        """Yield the entries of each head that *text* begins with."""
        for length in self._lengths:
            if length > len(text):
                return
            if (entries := self._by_head.get(text[:length])) is not None:
                yield entries


def _place(entry: tuple[int, UriTemplate, T]) -> int:
    return entry[0]
