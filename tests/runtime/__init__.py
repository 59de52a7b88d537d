"""The life of a server process: start, reload, background work, stop."""
