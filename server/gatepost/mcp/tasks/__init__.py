"""The tasks extension: a call is answered with a task, which survives the end of its process."""
