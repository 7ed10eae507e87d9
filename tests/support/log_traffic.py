"""Hand-made traffic in the data path's form, for the rejection log."""

from limiter.counting.rejections import Amount, Rejection, ResourceSecond, TrafficSecond
from limiter.rules.resource import Resource


def second_of(
    name: str = "orders",
    *,
    admitted: int = 0,
    refused: int = 0,
    repeated: int = 0,
    identified: int = 0,
    clients: tuple[str, ...] = ("10.0.0.1",),
) -> ResourceSecond:
    outcomes = {
        "admitted": Amount(admitted, 2 * admitted, 100 * admitted),
        "refused": Amount(refused, refused, refused),
    }
    return ResourceSecond(
        Resource("topic", name),
        {outcome: amount for outcome, amount in outcomes.items() if amount.requests},  # type: ignore[misc]  # they are
        refused,
        {"JAVA": (admitted + refused, refused)},
        clients,
        more_clients=False,
        repeated=Amount(repeated, 2 * repeated, 100 * repeated),
        identified=identified,
    )


def rejection_of(name: str = "orders", *, refused: int = 1, client: str = "10.0.0.1", rule: str = "") -> Rejection:
    amount = Amount(refused, refused, refused)
    return Rejection(Resource("topic", name), client, "producers", rule or f"topic:{name}", "refuse", amount, 7)


def taken(at_s: int, *names: str, refused: int = 1, other: int = 0, stepped_s: int = 0) -> TrafficSecond:
    """A second in which each topic has two requests admitted and some refused."""
    names = names or ("orders",)
    traffic = tuple(second_of(name, admitted=2, refused=refused) for name in names)
    rejections = tuple(rejection_of(name, refused=refused) for name in names)
    return TrafficSecond(at_s, traffic, rejections, other, stepped_s=stepped_s)
