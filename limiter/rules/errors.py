"""Defines the exception for invalid rules."""


class RuleError(ValueError):
    def __init__(self, what: str, allowed: str, attribute: str | None = None) -> None:
        super().__init__(f"{what}; allowed: {allowed}")
        self.what = what
        self.allowed = allowed
        self.attribute = attribute
