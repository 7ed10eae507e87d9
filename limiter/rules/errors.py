"""The one error of rules."""


class RuleError(ValueError):
    """A rule, a pattern or a schedule is not valid.

    Attributes:
        what: what is wrong, with the offending value.
        allowed: what would be right.
        attribute: the attribute of the rule, so that the caller can name the place; or None.
    """

    def __init__(self, what: str, allowed: str, attribute: str | None = None) -> None:
        super().__init__(f"{what}; allowed: {allowed}")
        self.what = what
        self.allowed = allowed
        self.attribute = attribute
