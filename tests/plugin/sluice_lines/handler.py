"""A handler that refuses requests for the configured resources, and fails closed."""

from typing import ClassVar

import msgspec

from proxy.deciding.batch import Batch, Refuse, Verdicts
from proxy.deciding.pipeline import Fails, Handler, HandlerPlugin, HandlerServices


class DenyNamesOptions(msgspec.Struct, kw_only=True):
    """The ``options`` of the handler's table."""

    names: list[str]


class DenyNames(Handler):
    """Refuses every request for one of ``names``."""

    fails: ClassVar[Fails] = "closed"

    def __init__(self, options: DenyNamesOptions) -> None:
        self._names = frozenset(options.names)

    def on_requests(self, batch: Batch, now_ns: int) -> Verdicts:
        del now_ns
        return {
            index: Refuse(resource, "deny_names", 0)
            for index, request in enumerate(batch.requests)
            for resource in request.resources
            if resource.name in self._names
        }


def _build(options: DenyNamesOptions, services: HandlerServices) -> Handler:
    del services
    return DenyNames(options)


PLUGIN = HandlerPlugin("deny_names", DenyNamesOptions, _build)
