"""Reviews of scripts: what waits for an administrator, and what was approved or rejected."""
