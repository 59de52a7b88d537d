"""What the tools read and a test has put there: the server loads tools as modules of its own."""

SAID = [""]
