"""
Read the notes of an Obsidian vault: front matter, wiki links, tags, and search over all of them.
"""
