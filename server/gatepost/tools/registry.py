"""Which tools exist, and which of them a caller may see."""

from collections import Counter
from collections.abc import Iterable

from gatepost.tools.api import Tool
from gatepost.tools.pack import NAME
from gatepost_authz.caller import TenantContext

# A permission set is a set of scopes; issuers that put a fresh one into every token must not grow
# our memory.
REMEMBERED_SETS = 1024


class UnknownTool(Exception):
    """No such tool within this caller's reach; whether it exists for others is not said."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Visible:
    """The tools one permission set reaches, by name; one object per set, so it can key a cache."""

    __slots__ = ("tools",)

    def __init__(self, tools: tuple[Tool, ...]) -> None:
        self.tools = tools


class Registry:
    """
    The enabled tools, as an immutable snapshot.

    A caller reaches a tool when its token grants all the tool's scopes, or lacks only scopes that
    it may step up to (*obtainable*; None: whatever enabled tools declare). Every other tool is
    unknown to it, exactly like one that does not exist. ValueError names bad and doubled names.
    """

    def __init__(self, tools: Iterable[Tool], *, obtainable: frozenset[str] | None = None) -> None:
        listed = sorted(tools, key=lambda tool: tool.name)
        counted = Counter(tool.name for tool in listed)
        if doubled := [name for name, count in counted.items() if count > 1]:
            raise ValueError(f"several tools have the same name: {', '.join(doubled)}")
        if bad := [name for name in counted if not NAME.fullmatch(name)]:
            raise ValueError(f"tool names must be 1 to 64 of a-z, 0-9 and _: {', '.join(bad)}")
        declared = frozenset().union(*(tool.scopes for tool in listed))
        self.tools = {tool.name: tool for tool in listed}
        self.obtainable = declared if obtainable is None else obtainable
        # What a caller must already hold to reach the tool at all.
        self._required = {tool.name: tool.scopes - self.obtainable for tool in listed}
        self._deciding = frozenset().union(*self._required.values())
        self._visible: dict[frozenset[str], Visible] = {}

    def find(self, caller: TenantContext, name: str) -> Tool:
        """The tool of that name within the caller's reach; raises UnknownTool."""
        tool = self.tools.get(name)
        if tool is None or not self._required[name] <= caller.scopes:
            raise UnknownTool(name)
        return tool

    def visible(self, caller: TenantContext) -> Visible:
        """What this caller may see, sorted by name; the same object for the same permissions."""
        held = caller.scopes & self._deciding
        visible = self._visible.get(held)
        if visible is None:
            if len(self._visible) >= REMEMBERED_SETS:
                self._visible.pop(next(iter(self._visible)))
            visible = Visible(
                tuple(tool for name, tool in self.tools.items() if self._required[name] <= held)
            )
            self._visible[held] = visible
        return visible
