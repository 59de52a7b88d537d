"""OpenAPI descriptions as tools: `openapi_*`, and one tool per operation."""
