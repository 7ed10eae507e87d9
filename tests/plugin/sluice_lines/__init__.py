"""A Sluice plug-in package: the protocol ``lines`` and the handler ``deny_names``."""
