"""Read the front matter of a skill's manifest: YAML that contains only JSON values."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gatepost.documents.yaml_reader import YamlError, YamlLimits, read_yaml

# Agent Skills' naming rules: no hyphen at an end, no two in a row.
NAME = re.compile(r"(?!.*--)[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
FRONTMATTER = re.compile(rb"\A(?:\xef\xbb\xbf)?---\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
LIMITS = YamlLimits(size=64_000, depth=16, nodes=10_000, weight=1_000_000)


def frontmatter(manifest: Path) -> Mapping[str, Any]:
    """Return the front matter of a manifest; raises ValueError if it is invalid."""
    match = FRONTMATTER.match(manifest.read_bytes())
    if match is None:
        raise ValueError(f"{manifest} must begin with YAML between two lines of `---`")
    try:
        read = read_yaml(match[1], LIMITS, inexact="refused", first_line=2)
    except YamlError as error:
        raise ValueError(f"{manifest}: the front matter {error}") from None
    if not isinstance(read, dict):
        raise ValueError(f"{manifest}: the front matter must be names and values")
    for member in ("name", "description"):
        if not isinstance(read.get(member), str) or not read[member]:
            raise ValueError(f"{manifest}: the front matter needs a `{member}`")
    if not NAME.fullmatch(read["name"]):
        raise ValueError(f"{manifest}: a name is 1 to 64 of a-z, 0-9 and single hyphens between")
    return read
