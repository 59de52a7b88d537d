"""Store the durable records, and share short-lived state between processes."""
