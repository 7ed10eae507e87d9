"""Real processes for the integration tests: name server, broker, sluice, and client programs.

Nothing here asserts. What cannot run raises an error that says what to install or shows the end of the log.
"""
