"""The vault: what a note is, what is found of it, and what no index may spoil."""
