"""Tools, resources and prompts as values, and which of them a caller reaches."""
