"""From a file and the environment to one frozen configuration, and every problem in it."""
