"""A Sluice plug-in package: the protocol ``lines`` and the handlers ``deny_names`` and ``busy``."""
