"""A request's head that came before on its connection: parsed once, then known by its bytes."""

import re
from typing import Any

from gatepost.scope import HEAD_AT_MOST, SAME_HEAD, WHOLE_BODY

LENGTH = b"content-length"
# With a look ahead, so that of two such lines both are found.
LENGTH_LINE = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})(?=\r\n)", re.IGNORECASE)
# It is kept while its connection is idle, beside the fields: a stranger's need not be.
MOST_KEPT_BYTES = 16 * 1024
# What makes a request more than a head and a body of that length.
UNUSUAL = frozenset({b"transfer-encoding", b"expect", b"upgrade"})


class KnownHead:
    """
    The head of a request that came whole in one packet, and what the parser made of it.

    A client sends the same fields with every request, but for the body's length; the same bytes
    mean the same, so they need not be parsed, folded, stripped and looked through once more. Only
    a packet that is this head and a body of the length it declares is taken: everything else is
    the parser's. ``scope`` is the template of such requests' scopes, where SAME_HEAD stands for
    what whoever looks at a head wants to remember of it.
    """

    __slots__ = ("_digits", "_end", "_place", "_start", "_whole", "scope")

    def __init__(self, head: bytes, found: re.Match[bytes], scope: dict[str, Any]) -> None:
        self.scope = scope
        self._whole, self._digits = head, found[1]
        self._start, self._end = found.span(1)
        self._place = [name for name, _ in scope["headers"]].index(LENGTH)

    def scope_of(self, data: bytes) -> dict[str, Any] | None:
        """The scope of the request that *data* is, with its body; None where that is another."""
        whole = self._whole
        if data.startswith(whole):
            digits, begin = self._digits, len(whole)
        else:
            begin = self._start
            end = data.find(b"\r", begin, begin + 20)
            digits = data[begin : max(end, begin)]
            begin += len(digits)
            if not (
                digits.isdigit()
                and data.startswith(whole[: self._start])
                and data.startswith(whole[self._end :], begin)
            ):
                return None
            begin += len(whole) - self._end
        if len(data) - begin != int(digits):
            return None
        scope = self.scope.copy()
        if digits != self._digits:
            headers = scope["headers"] = scope["headers"].copy()
            headers[self._place] = (LENGTH, digits)
        scope[WHOLE_BODY] = data[begin:]
        return scope


def known(data: bytes, scope: dict[str, Any]) -> KnownHead | None:
    """
    The head of the one request that the packet *data* held, whose *scope* has the whole body; None
    where the same bytes need not mean the same again.
    """
    body: bytes = scope[WHOLE_BODY]
    head, end, rest = data.partition(b"\r\n\r\n")
    head += end
    fields = [name for name, _ in scope["headers"]]
    if (
        scope["http_version"] != "1.1"
        # The parser skips line ends before a request and behind it. Cut off by its length, a body
        # with an empty line in it would be split there, and its next one take in what follows it.
        or len(rest) != len(body)
        or len(head) > MOST_KEPT_BYTES
        or not UNUSUAL.isdisjoint(fields)
        or fields.count(LENGTH) != 1
    ):
        return None
    lines = [*LENGTH_LINE.finditer(head)]
    # No line of that form elsewhere, so what is cut out is what the parser read.
    if len(lines) != 1 or int(lines[0][1]) != len(body):
        return None
    template = {**scope, HEAD_AT_MOST: len(head), SAME_HEAD: {}}
    del template[WHOLE_BODY]
    return KnownHead(head, lines[0], template)
