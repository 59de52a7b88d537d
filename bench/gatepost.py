"""Gatepost's configuration for the comparison, and the tools that make its list long."""

import json
import socket
from collections.abc import Sequence
from pathlib import Path

from bench.servers.settings import Settings
from gatepost.secrets.keyring import create

DEMO_TOOLS = 5
"""What the demo pack brings: echo, whoami, save_csv, delete_csv and count_slowly."""

CONFIG = """\
resource = "{resource}"
mode = "development"

[listen]
host = "127.0.0.1"
port = {port}
metrics = {metrics}

[[issuers]]
issuer = "{issuer}"
tenant = {{ claim = "org_id" }}

[tenancy]
create_on_first_use = true

[tools]
load = {load}
packs = ["demo"]

[workspace]
root = {workspaces}

{controls}
"""

ON = """\
[keys]
ring = {ring}

[storage]
database = {database}

[limits]
failures_per_second = 0
requests_per_second = 1_000_000
burst = 1_000_000

[limits.tenant]
requests_per_second = 1_000_000
burst = 1_000_000

[limits.tool]
requests_per_second = 1_000_000
burst = 1_000_000
concurrency = 1_000

[log]
level = "info"
format = "json"
"""
"""
Everything that stands around a call in production, with limits that no call reaches. With its key
ring the server signs checkpoints, as in production.
"""

OFF = """\
[storage]
database = "memory:"

[audit]
enabled = false

[limits]
failures_per_second = 0
requests_per_second = 0
concurrency = 0
tenant = {{ concurrency = 0 }}

[log]
level = "error"
"""
"""The gate, the protocol and the runner alone."""

PACK_HEAD = '''\
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


def write_config(
    settings: Settings,
    folder: Path,
    *,
    further_files: Sequence[Path] = (),
    controls: str = ON,
    database: str = "",
) -> Path:
    """
    Write configuration and tools into *folder*, naming *further_files* tools; the path for
    `--config`.

    *controls* is ON or OFF. The default *database* is a SQLite file in the folder.
    """
    fillers = range(DEMO_TOOLS, settings.tools)
    if fillers:
        tools = PACK_HEAD + "".join(FILLER.format(number=number) for number in fillers)
        (folder / "fillers.py").write_text(tools, encoding="utf-8")
    load = [*map(str, further_files), *([str(folder / "fillers.py")] if fillers else [])]
    ring = folder / "keyring.json"
    is_on = controls.startswith(ON)
    if is_on and not ring.exists():
        create(ring)
    text = CONFIG.format(
        resource=settings.resource,
        port=settings.port,
        issuer=settings.issuer,
        load=json.dumps(load),
        workspaces=json.dumps(str(folder / "workspaces")),
        metrics=json.dumps(f"127.0.0.1:{free_port()}" if is_on else ""),
        controls=controls.format(
            database=json.dumps(database or f"sqlite:///{folder / 'gatepost.db'}"),
            ring=json.dumps(f"file:{ring}"),
        ),
    )
    path = folder / "gatepost.toml"
    path.write_text(text, encoding="utf-8")
    return path


def free_port() -> int:
    """Return a port that no process uses at this moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
    return port
