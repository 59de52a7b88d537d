"""Work in a process of its own, for libraries that a hostile input could make run for ever."""
