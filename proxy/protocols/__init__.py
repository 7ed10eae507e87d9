"""The protocols Sluice speaks; each is a package of its own behind the interface in ``base``."""
