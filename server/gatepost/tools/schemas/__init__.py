"""Check arguments with JSON Schemas, within bounds."""
