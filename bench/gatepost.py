"""Gatepost's configuration for the comparison, and the tools that make its list long."""

import json
from collections.abc import Sequence
from pathlib import Path

from bench.servers.settings import Settings

DEMO_TOOLS = 4
"""What the demo pack brings: echo, whoami, save_csv and count_slowly."""

CONFIG = """\
resource = "{resource}"
mode = "development"

[listen]
host = "127.0.0.1"
port = {port}

[[issuers]]
issuer = "{issuer}"
tenant = {{ claim = "org_id" }}

[tenancy]
create_on_first_use = true

[tools]
load = {load}
packs = ["demo"]

[storage]
database = "memory:"

[workspace]
root = {workspaces}

[limits]
failures_per_second = 0
requests_per_second = 0

[log]
level = "info"
format = "json"
"""

HEAD = '''\
"""Tools that make the list long."""

from gatepost import CallContext, Pack

pack = Pack("fillers")

'''

FILLER = '''
@pack.tool(read_only=True)
async def tool_{number:03}(
    ctx: CallContext, name: str, count: int = 1, tags: list[str] | None = None
) -> str:
    """One of the tools that make the list long."""
    return name

'''


def write_config(settings: Settings, folder: Path, *, more: Sequence[Path] = ()) -> Path:
    """Write configuration and tools into *folder*, naming *more* tools; the path for `--config`."""
    fillers = range(DEMO_TOOLS, settings.tools)
    if fillers:
        tools = HEAD + "".join(FILLER.format(number=number) for number in fillers)
        (folder / "fillers.py").write_text(tools, encoding="utf-8")
    load = [*map(str, more), *([str(folder / "fillers.py")] if fillers else [])]
    text = CONFIG.format(
        resource=settings.resource,
        port=settings.port,
        issuer=settings.issuer,
        load=json.dumps(load),
        workspaces=json.dumps(str(folder / "workspaces")),
    )
    path = folder / "gatepost.toml"
    path.write_text(text, encoding="utf-8")
    return path
