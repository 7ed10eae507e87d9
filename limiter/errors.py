"""The one error of rules: something an operator wrote cannot be."""


class RuleError(ValueError):
    """A rule, a pattern or a schedule that cannot be.

    Attributes:
        what: what is wrong, with the offending value.
        allowed: what would be right.
    """

    def __init__(self, what: str, allowed: str) -> None:
        super().__init__(f"{what}; allowed: {allowed}")
        self.what = what
        self.allowed = allowed
