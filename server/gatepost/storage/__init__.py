"""
What outlives a request: records that a promise depends on, and a shared store between processes.
"""
