"""Run workers in child processes, for libraries that hostile input could make run forever."""
