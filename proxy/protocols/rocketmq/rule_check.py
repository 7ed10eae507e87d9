"""What a rule cannot say about RocketMQ: numbers that are no refusal, and patterns that no name can match.

Rules themselves are ``limiter.rule``'s; this is asked once for each when it is read.
"""

from limiter.errors import RuleError
from limiter.rule import Rule
from proxy.protocols.rocketmq.codes import (
    BUSY_CODES,
    KIND_RETRY_GROUP,
    KIND_SUBSCRIPTION,
    KIND_TOPIC,
    RETRY_PREFIX,
    SUBSCRIPTION_MARK,
)


def check_rule(rule: Rule) -> None:
    """Refuse a rule that cannot be followed, or that can never match.

    Raises:
        RuleError: its ``busy_code`` is no word for busy; or its pattern names a retry topic where the group is meant,
            or a subscription without its topic.
    """
    if rule.busy_code is not None and rule.busy_code not in BUSY_CODES:
        raise RuleError(
            f"rule {rule.name}: busy_code {rule.busy_code}, which clients do not take for busy",
            " or ".join(map(str, sorted(BUSY_CODES))),
            "busy_code",
        )
    name = rule.matches.exact_name
    written = rule.pattern if name is None else name
    if rule.kind in {KIND_TOPIC, KIND_RETRY_GROUP} and written.startswith(RETRY_PREFIX):
        group = written.removeprefix(RETRY_PREFIX) or "*"
        raise RuleError(
            f"rule {rule.name}: {RETRY_PREFIX} is no part of a name here; retry topics are limited by their group",
            f"kind {KIND_RETRY_GROUP} and the bare group, {group}",
            "pattern",
        )
    if rule.kind == KIND_SUBSCRIPTION and name is not None and SUBSCRIPTION_MARK not in name:
        raise RuleError(
            f"rule {rule.name}: {name} names no subscription",
            f"GROUP{SUBSCRIPTION_MARK}TOPIC, e.g. {name}{SUBSCRIPTION_MARK}* for the group or"
            f" *{SUBSCRIPTION_MARK}{name} for the topic",
            "pattern",
        )
