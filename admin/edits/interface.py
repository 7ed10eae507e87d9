"""What the rest of the admin side knows of live changes; ``service.EditService`` is it."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from admin.config.rule_fields import RuleReader
from admin.edits.model import Author, Change, Edit, LimitEntry, Persistence, ReloadReport, SwitchEntry
from limiter.rules.rule_set import RuleSet


class LiveLimits(Protocol):
    """The limits in force, and the one way to change them.

    Reading is of what has been committed: durable, in force, and recorded.
    """

    @property
    def reader(self) -> RuleReader:
        """What rules are read with; it knows the kinds that there are."""

    @property
    def rule_set(self) -> RuleSet:
        """The configuration's rules with the standing edits over them; its version counts up with every commit."""

    @property
    def etag(self) -> str:
        """Of all limits and switches together."""

    @property
    def persistence(self) -> Persistence:
        """Where edits are kept, and what is wrong with that."""

    def limit(self, kind: str, name: str) -> LimitEntry:
        """Return the limit of one name or pattern, with a rule of its own or not.

        Raises:
            NotFoundError: there is no such kind, or the name is none.
        """

    def limits(self) -> Sequence[LimitEntry]:
        """Return all that have a rule of their own, configured or edited; the same object until something changes."""

    def switches(self) -> Sequence[SwitchEntry]:
        """Return the switch for all, then that of each kind."""

    async def change(
        self,
        edits: Sequence[Edit],
        author: Author,
        *,
        dry_run: bool = False,
        volatile: bool = False,
        if_match: str = "",
    ) -> tuple[Change, ...]:
        """Do all the edits or none of them; returns when they are durable and hold for the very next request.

        Args:
            edits: in order; each sees those before it.
            author: who asks.
            dry_run: say what would change, and change nothing.
            volatile: change it only until the restart, without writing it down.
            if_match: the ``etag`` of all that is expected; empty is any.

        Raises:
            EditError, StaleError, NotFoundError, StoreError: nothing was changed.
        """

    async def reset(self, kind: str, name: str, author: Author, *, reason: str = "") -> Change:
        """Let the limiters of a limit begin anew: full, closed, without shares. The limit stays as it is.

        Those of one name, of a total, or of all names for which a pattern's rule is in force.

        Raises:
            NotFoundError: there is no such kind, the name is none, or there is no rule of that pattern.
            EditError: the reason is too long.
        """

    async def revert(
        self, change_id: int, author: Author, *, reason: str = "", force: bool = False, dry_run: bool = False
    ) -> Change:
        """Undo one change.

        Raises:
            NotFoundError: there is no such change, or nothing of it can be undone.
            ConflictError: a later one changed the same, and it is not ``force``.
            StoreError: nothing was changed.
        """

    async def reload(self, author: Author, *, dry_run: bool = False) -> ReloadReport:
        """Read the configuration again, and put in force what does not need a restart.

        Raises:
            ReloadError: it is wrong; nothing was changed.
        """

    async def audit(
        self, *, before: int | None = None, target: str = "", by: str = "", limit: int = 100
    ) -> tuple[Change, ...]:
        """Return changes, the latest first.

        Args:
            before: only those with a smaller id.
            target: only those whose target begins with it.
            by: only those of this author.
            limit: so many at most.
        """

    def changes(self) -> AsyncIterator[Change]:
        """Follow changes as they are committed; a follower that does not keep up loses the oldest."""
