"""What the harness tells a server, and how every one of them is served."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvicorn

VARIABLE = "BENCH_SETTINGS"


@dataclass(frozen=True)
class Settings:
    """
    Where a server listens and whose tokens it accepts.

    `sizes` are the floor's answers; `upstream` is the URL of the MCP server behind a gateway.
    """

    port: int
    issuer: str
    jwks_uri: str
    resource: str
    tools: int
    sizes: dict[str, int]
    upstream: str = ""

    def write(self, path: Path) -> dict[str, str]:
        """Save to a file; the environment that makes a server read it."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return {VARIABLE: str(path)}

    @classmethod
    def read(cls) -> "Settings":
        """Read the settings that the harness saved for this process."""
        return cls(**json.loads(Path(os.environ[VARIABLE]).read_text(encoding="utf-8")))


def serve(app: Any, settings: Settings, *, lifespan: str = "auto") -> None:
    """Run Uvicorn at its fastest; its defaults would make these servers up to five times slower."""
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=settings.port,
        loop="uvloop",
        http="httptools",
        lifespan=lifespan,  # type: ignore[arg-type]
        access_log=False,
        log_level="warning",
    )
