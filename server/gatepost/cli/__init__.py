"""The command line: a table of commands, each loaded when it runs."""
