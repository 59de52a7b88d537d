"""Read the file and the environment into one frozen configuration, and find every problem in it."""
