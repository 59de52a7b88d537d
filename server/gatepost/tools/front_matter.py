"""Read the front matter of a skill's manifest: YAML that contains only JSON values."""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

# Agent Skills' naming rules: no hyphen at an end, no two in a row.
NAME = re.compile(r"(?!.*--)[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
FRONTMATTER = re.compile(rb"\A(?:\xef\xbb\xbf)?---\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)


def frontmatter(manifest: Path) -> Mapping[str, Any]:
    """Return the front matter of a manifest; raises ValueError if it is invalid."""
    match = FRONTMATTER.match(manifest.read_bytes())
    if match is None:
        raise ValueError(f"{manifest} must begin with YAML between two lines of `---`")
    try:
        read = yaml.load(match[1], Loader=_SkillLoader)  # noqa: S506  # a SafeLoader without dates
    except yaml.YAMLError as error:
        place = getattr(error, "problem_mark", None)
        where = f", line {place.line + 2}" if place is not None else ""
        raise ValueError(f"{manifest}{where}: the frontmatter is not YAML") from None
    if not isinstance(read, dict):
        raise ValueError(f"{manifest}: the frontmatter must be names and values")
    for problem in _not_json(read, "frontmatter"):
        raise ValueError(f"{manifest}: {problem}")
    for member in ("name", "description"):
        if not isinstance(read.get(member), str) or not read[member]:
            raise ValueError(f"{manifest}: the frontmatter needs a `{member}`")
    if not NAME.fullmatch(read["name"]):
        raise ValueError(f"{manifest}: a name is 1 to 64 of a-z, 0-9 and single hyphens between")
    return read


def _not_json(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                yield f"{place}: the key {key!r} is not text"
            yield from _not_json(inner, f"{place}.{key}")
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from _not_json(inner, f"{place}[{at}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{place}: {value} is no JSON number"
    elif not isinstance(value, str | int | float | bool | None):
        yield f"{place}: a {type(value).__name__} is no JSON value"


class _SkillLoader(yaml.SafeLoader):
    """Loads only JSON types from YAML: a date stays the text that the author wrote."""


_SkillLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag != "tag:yaml.org,2002:timestamp"]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
