"""The one error of rules: something an operator wrote cannot be."""


class RuleError(ValueError):
    """A rule, a pattern or a schedule that cannot be.

    Attributes:
        what: what is wrong, with the offending value.
        allowed: what would be right.
        attribute: which attribute of the rule it is about, for whoever knows where that was written; or None.
    """

    def __init__(self, what: str, allowed: str, attribute: str | None = None) -> None:
        super().__init__(f"{what}; allowed: {allowed}")
        self.what = what
        self.allowed = allowed
        self.attribute = attribute
