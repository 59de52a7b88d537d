"""Read JSON and YAML, also of others, within bounds."""
