"""Calls of upstreams: their tools, resources, prompts and completions, for callers of both eras."""
