"""A simulated broker behind sidecars with adaptive limits, with a manual clock in ticks of 2 ms.

The broker serves one message at a time and refuses requests that have waited too long in its queue, as RocketMQ's fast
failure does. Clients offer messages at random times. The sidecars have the real limiters and controllers.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import exp
from random import Random
from statistics import mean
from typing import Literal

from limiter.adaptive.controller import STEP_NS, BrokerSeen, Controller
from limiter.buckets.adaptive import AdaptiveLimiter
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule

TICK_MS = 2
_MS_NS = 1_000_000
_STEP_MS = STEP_NS // _MS_NS

Service = Literal["exponential", "constant", "bimodal", "log-normal"]
Over = Callable[[float], float]
"""A figure over time, in seconds."""


@dataclass(frozen=True)
class Topic:
    name: str
    per_s: float | Over  # messages offered
    batch: int = 1  # messages in a request
    retries: int = 0  # retries of a refused request, at once
    sidecar: int = 0
    weight: int = 1

    @property
    def is_quiet(self) -> bool:
        return self.name.startswith("quiet")


@dataclass(frozen=True)
class Model:
    topics: Sequence[Topic]
    capacity: float | Over = 1_000  # messages per second. 0: the broker is down
    service: Service = "exponential"
    fast_failure_ms: float | None = 200
    pause_every_s: float | None = None  # mean time between pauses, as of a garbage collector
    latency_ms: float | Over = 2  # of the network and others, without the queue
    max_pause_ms: float = 100  # they take at least half of this
    lost: float = 0.0  # fraction of requests without any answer
    lies: bool = False  # it answers busy to all
    blocked: Callable[[float], bool] = field(default=lambda _: False)
    seconds: float = 20
    seed: int = 1
    floor_per_s: float = 20


@dataclass
class Second:
    """The outcomes of one second. The limits are the sum of all sidecars."""

    ok: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)  # refused by a sidecar or the broker, after all retries
    here: Counter[str] = field(default_factory=Counter)  # refused by a sidecar, retries included
    limits: list[float | None] = field(default_factory=list)
    waits_ms: list[float] = field(default_factory=list)

    @property
    def limit(self) -> float | None:
        limits = [limit for limit in self.limits if limit is not None]
        return mean(limits) if limits else None


@dataclass
class Result:
    seconds: list[Second]
    reasons: list[str]
    controllers: list[Controller]

    def lost(self, topic: str, begins_s: int = 3, ends_s: int | None = None) -> float:
        """Return the fraction of a topic's messages that did not pass."""
        part = self.seconds[begins_s:ends_s]
        return sum(each.lost[topic] for each in part) / max(1, sum(each.asked[topic] for each in part))

    def is_served(self, topic: str, begins_s: int = 3) -> bool:
        """Say whether a topic lost at most 0.5 % of its messages, or a single one."""
        lost = sum(each.lost[topic] for each in self.seconds[begins_s:])
        return lost <= max(1, 0.005 * sum(each.asked[topic] for each in self.seconds[begins_s:]))

    def goodput(self, begins_s: int = 3, ends_s: int | None = None) -> float:
        return mean(each.ok.total() for each in self.seconds[begins_s:ends_s])


def _at(figure: float | Over, seconds: float) -> float:
    return figure if isinstance(figure, (int, float)) else figure(seconds)


class _Sidecar:
    def __init__(self, model: Model) -> None:
        rule = Rule("listener", "in", None, adaptive=True, floor_per_s=model.floor_per_s)
        self.limiter = AdaptiveLimiter(Resource("listener", "in"), rule, 0)
        weights = {topic.name: topic.weight for topic in model.topics}
        self.limiter.set_weight_of(lambda key: weights[key])
        self.controller = Controller(model.floor_per_s, None, 0)
        self.answers = self.busy = self.unanswered = 0
        self.round_trips_ns: list[int] = []

    def step(self, now_ns: int, *, blocked: bool) -> None:
        seen = BrokerSeen(self.answers, self.busy, self.round_trips_ns[:32], self.unanswered, blocked)
        _, is_holding = self.limiter.took()
        limit = self.controller.step(now_ns, seen, is_holding)
        self.limiter.follow(now_ns, limit)
        self.answers = self.busy = 0
        self.round_trips_ns = []


def _poisson(random: Random, expected: float) -> int:
    if expected > 30:
        return max(0, round(random.gauss(expected, expected**0.5)))
    floor, product, count = exp(-expected), random.random(), 0
    while product > floor:
        product *= random.random()
        count += 1
    return count


def run(model: Model, trace: Callable[[float, list[Controller], int], None] | None = None) -> Result:
    random = Random(model.seed)
    sidecars = [_Sidecar(model) for _ in range(1 + max(topic.sidecar for topic in model.topics))]
    seconds = [Second() for _ in range(int(model.seconds))]
    reasons: list[str] = []
    queue: deque[tuple[float, Topic, int]] = deque()  # forwarded, topic, retries left
    answers: defaultdict[int, list[tuple[float, Topic, int, bool]]] = defaultdict(list)
    retrying: list[tuple[Topic, int]] = []
    next_pause_ms = random.expovariate(1 / model.pause_every_s) * 1000 if model.pause_every_s else float("inf")
    free_ms = 0.0  # end of the current service

    def offer(topic: Topic, requests: int, retries: int) -> None:
        sidecar = sidecars[topic.sidecar]
        admitted = sidecar.limiter.share(topic.name, now_ns).acquire(now_ns, (topic.batch,) * requests).admitted
        queue.extend([(now_ms, topic, retries)] * admitted)
        sidecar.unanswered += admitted * topic.batch
        if admitted < requests:
            second.here[topic.name] += (requests - admitted) * topic.batch
            refused(topic, requests - admitted, retries)

    def refused(topic: Topic, requests: int, retries: int) -> None:
        if retries:
            retrying.extend([(topic, retries - 1)] * requests)
        else:
            second.lost[topic.name] += requests * topic.batch

    for now_ms in range(0, int(model.seconds * 1000), TICK_MS):
        now_ns, now_s = now_ms * _MS_NS, now_ms / 1000
        second = seconds[now_ms // 1000]
        for passed_ms, topic, retries, busy in answers.pop(now_ms // TICK_MS, ()):
            sidecar = sidecars[topic.sidecar]
            sidecar.answers += topic.batch
            sidecar.unanswered -= topic.batch
            sidecar.round_trips_ns.append(round((now_ms - passed_ms) * _MS_NS))
            if busy:
                sidecar.busy += topic.batch
                refused(topic, 1, retries)
            else:
                second.ok[topic.name] += topic.batch
        again, retrying = Counter(retrying), []
        for (topic, retries), count in again.items():
            offer(topic, count, retries)
        for topic in model.topics:
            requests = _poisson(random, _at(topic.per_s, now_s) / topic.batch * TICK_MS / 1000)
            if requests:
                second.asked[topic.name] += requests * topic.batch
                offer(topic, requests, topic.retries)
        latency_ms = _at(model.latency_ms, now_s)
        due = (now_ms + latency_ms) / TICK_MS
        if now_ms >= next_pause_ms:
            free_ms = max(free_ms, now_ms + random.uniform(0.5, 1) * model.max_pause_ms)
            next_pause_ms = now_ms + random.expovariate(1 / (model.pause_every_s or 1)) * 1000
        oldest_ms = now_ms - (model.fast_failure_ms or float("inf"))
        capacity = 0 if model.blocked(now_s) else _at(model.capacity, now_s)
        while capacity and queue and (queue[0][0] < oldest_ms or model.lies):
            passed_ms, topic, retries = queue.popleft()
            answers[int(due) + 1].append((passed_ms, topic, retries, True))
        free_ms = max(free_ms, now_ms - TICK_MS)
        if not capacity:
            free_ms = max(free_ms, now_ms)
        while queue and free_ms < now_ms:
            passed_ms, topic, retries = queue.popleft()
            free_ms = max(free_ms, passed_ms) + _service_ms(random, model.service, topic.batch) / capacity
            if random.random() >= model.lost:
                due = (max(free_ms, now_ms) + latency_ms) / TICK_MS
                answers[int(due) + 1].append((passed_ms, topic, retries, False))
        for number, sidecar in enumerate(sidecars):
            # Sidecars do not step at the same time.
            if now_ms and now_ms % _STEP_MS == number * 30:
                before = sidecar.controller.reason
                sidecar.step(now_ns, blocked=model.blocked(now_s))
                if sidecar.controller.reason != before:
                    reasons.append(f"{now_s:.1f} {sidecar.controller.reason} {sidecar.controller.limit_per_s}")
        if now_ms and now_ms % _STEP_MS == 0:
            limits = [sidecar.controller.limit_per_s for sidecar in sidecars]
            known = [limit for limit in limits if limit is not None]
            second.limits.append(sum(known) if known else None)
            second.waits_ms.append(now_ms - queue[0][0] if queue else 0)
            if trace is not None:
                trace(now_s, [sidecar.controller for sidecar in sidecars], len(queue))
    return Result(seconds, reasons, [sidecar.controller for sidecar in sidecars])


def _service_ms(random: Random, service: Service, messages: int) -> float:
    """Return the time to serve messages, in milliseconds at one message per second."""
    if service == "constant":
        return 1000.0 * messages
    if service == "exponential":
        return random.gammavariate(messages, 1000) if messages > 1 else random.expovariate(0.001)
    if service == "bimodal":
        return messages * (5500.0 if random.random() < 0.1 else 500.0)
    return messages * random.lognormvariate(-0.5, 1) * 1000


def random_model(seed: int) -> Model:
    """Return a model of the acceptance class: service times, batches, retries, several sidecars."""
    random = Random(seed)
    capacity = 200 * 25 ** random.random()
    count = random.choice((1, 1, 2, 3))
    everywhere = random.random() < 0.5
    quiet = random.randint(3, 8)
    equal = capacity / count / (quiet + 1)
    service: Service = random.choice(("exponential", "constant", "bimodal", "log-normal"))
    # A batch takes at most 40 ms, except for one log-normal of a hundred.
    most = int(capacity * 0.04 / (5.5 if service in ("bimodal", "log-normal") else 1))
    retries, batch = random.choice((0, 0, 1, 3)), max(1, min(random.choice((1, 1, 8, 32)), most))
    fast_failure_ms = random.choice((200, 200, 200, None))
    topics = []
    for sidecar in range(count):
        if everywhere or not sidecar:
            offered = capacity * (15 if fast_failure_ms else 3) ** random.random() * 1.3
            topics.append(Topic(f"flood{sidecar}", min(offered, 20_000), batch, retries, sidecar))
        for number in range(quiet):
            per_s = equal * random.uniform(0.1, 0.6)
            topics.append(Topic(f"quiet{sidecar}{number}", per_s, 1, random.choice((0, retries)), sidecar))
    return Model(
        topics,
        capacity,
        service,
        fast_failure_ms,
        random.choice((None, None, 10)),
        random.uniform(1, 20),
        seed=seed,
    )


def broader_model(seed: int) -> Model:
    """Return a model of a broader class: capacity, demand and latency change, and answers are lost."""
    random = Random(seed)
    model = random_model(seed + 1_000_000)
    assert isinstance(model.capacity, float)
    high, low = model.capacity, model.capacity * random.uniform(0.4, 0.9)
    latency_ms, drift_ms = model.latency_ms, random.choice((0, 0, 1, 2))
    assert isinstance(latency_ms, (int, float))
    from_s, to_s = random.uniform(4, 8), random.uniform(11, 15)
    return replace(
        model,
        # Quiet topics stay below their equal share of the lower capacity.
        topics=[
            replace(topic, per_s=topic.per_s * low / high) if topic.is_quiet else topic  # type: ignore[operator]
            for topic in model.topics
        ],
        capacity=lambda now_s: low if from_s <= now_s < to_s else high,
        latency_ms=lambda now_s: latency_ms + drift_ms * now_s,
        lost=random.choice((0, 0, 0.002)),
        pause_every_s=random.choice((None, 3, 8)),
        max_pause_ms=200,
    )


def capacity_of(model: Model, begins_s: int = 3) -> float:
    """Return the broker's mean capacity without pauses, or the demand if that is less."""
    seconds = range(begins_s, int(model.seconds))
    pause_s = 0.00075 * model.max_pause_ms
    part = 1 - pause_s / (model.pause_every_s + pause_s) if model.pause_every_s else 1.0
    offered = mean(sum(_at(topic.per_s, now_s) for topic in model.topics) for now_s in seconds)
    return min(offered, part * mean(_at(model.capacity, now_s + 0.5) for now_s in seconds))
