"""The one error of rules."""


class RuleError(ValueError):
    """A rule, a pattern or a schedule is not valid."""

    def __init__(self, what: str, allowed: str, attribute: str | None = None) -> None:
        super().__init__(f"{what}; allowed: {allowed}")
        self.what = what
        self.allowed = allowed  # what would be right
        self.attribute = attribute  # the attribute of the rule, so that the caller can name the place; or None
