"""The tools of the pack `github`."""
