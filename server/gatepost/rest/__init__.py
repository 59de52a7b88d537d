"""The REST tool protocol: `GET /tools` and `POST /tool/{name}/call` beside the MCP endpoint."""
