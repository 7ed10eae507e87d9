"""``bucket.lua`` in Python, line by line, on a manual clock."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor
from typing import Any

SILENT_US, STOPPED_US, MIN_PER_S, MAX_SLOTS = 3e6, 1e6, 0.25, 8


class FleetRedis:
    """One fleet's content in Redis. Keys do not expire here."""

    def __init__(self) -> None:
        self.hashes: dict[str, dict[str, list[float]]] = {}
        self.granted = 0
        self.edits_version = b""

    def flush(self) -> None:
        self.hashes.clear()

    def call(self, now: float, keys: Sequence[str], args: Sequence[Any]) -> list[Any]:
        """Do what the script does at ``now``, in microseconds."""
        member_id, number, part, slot, digest = args[0], float(args[1]), float(args[2]), int(args[3]), int(args[4])
        members = self.hashes.setdefault(keys[0], {})
        if member_id in members and members[member_id][1] >= number:
            return []
        alive, used = {member_id}, set()
        at, removed_at = members.get("", [now, 0.0])
        others, taken, other = 0, 0.0, ""
        excused = now < at or now - at > STOPPED_US
        for member in [each for each in members if each not in {"", member_id}]:
            seen, latest, its, its_slot, its_digest = members[member]
            if not excused and now - seen > SILENT_US:
                del members[member]
                removed_at = floor(now / 1e3) % 2**32
            else:
                if excused:
                    members[member] = [now, latest, its, its_slot, its_digest]
                alive.add(member)
                used.add(its_slot)
                others, taken = others + 1, taken + its
                other = member if its_digest != digest else other
        new_part = max(0.0, min(1 / (others + 2), 1 - taken))
        if slot < 0 or slot in used:
            slot = next(each for each in range(len(used) + 1) if each not in used)
        members[""] = [now, removed_at]
        members[member_id] = [now, number, max(part, new_part), slot, digest]
        if part < 0:
            del members[member_id]
        answer: list[Any] = [others + 1, floor(new_part * 1e9), slot, other.encode()]
        for index, key in enumerate(keys[1:-1]):
            figures = [float(each) for each in args[5 + 7 * index : 12 + 7 * index]]
            answer += self._bucket(now, key, member_id, max(part, new_part), slot, part < 0, alive, removed_at, figures)
        return [*answer, self.edits_version]

    def _bucket(  # noqa: PLR0917
        self,
        now: float,
        key: str,
        member_id: str,
        part: float,
        slot: int,
        leaves: bool,  # noqa: FBT001
        alive: set[str],
        removed_at: float,
        figures: Sequence[float],
    ) -> list[int]:
        rate, capacity, spent, kept, want, demand, age = figures
        slots = min(floor(0.75 * (capacity - 1)), MAX_SLOTS)
        parts = capacity / 2 - slots if capacity / 2 - slots >= 2 else 0
        room = capacity - parts - slots
        fields = self.hashes.setdefault(key, {})
        at, stored, v, weights, claims, held, longest, asking, clean_at = (
            now,
            room,
            0.0,
            0.0,
            0.0,
            0.0,
            now,
            0,
            removed_at,
        )
        if "" in fields:
            at, stored, v, weights, claims, held, longest, asking, clean_at = fields[""]
        elif age >= 0:
            stored = min(room, rate * age)
        mine = fields.get(member_id)
        if clean_at != removed_at:
            weights, claims, held, longest, asking = 0.0, 0.0, 0.0, now, 0
            for each, (_, its_held, weight, its_v, claim, advance, _) in [(m, f) for m, f in fields.items() if m]:
                if each in alive:
                    weights, claims = weights + weight, claims + max(0, claim) + weight * (v - its_v)
                    held, asking = held + max(-advance, its_held), asking + 1
                else:
                    stored -= advance
                    del fields[each]
        minted = rate * max(0, now - at) / 1e6
        stored = min(stored + minted, max(stored, 0, room - held))
        if weights > 0:
            v, claims = v + minted / weights, claims + minted
        claim, since = 0.0, now
        if mine is not None:
            its_spent, its_held, weight, its_v, its_claim, its_advance, since = mine
            accrued = weight * (v - its_v)
            claim, claims = its_claim + accrued, claims - max(0, its_claim) - accrued
            stored = stored + its_held - (spent - its_spent) - kept
            weights, held, asking = weights - weight, held - max(-its_advance, its_held), asking - 1
        if asking <= 0:
            weights, claims, held, longest, asking = 0.0, 0.0, 0.0, now, 0
        advance = floor(parts * part) + (slot < slots)
        stored = min(stored, max(0, room - held - max(-advance, kept)))

        free = max(0, stored - max(0, claims) - max(0, claim))
        is_turn = stored >= min(room, claims + max(0, claim)) or since <= longest
        most = claim + free + (1 - 1e-9 if since <= longest and claim > 0 else 0)
        granted = max(0, floor(min(want, most, stored))) if is_turn else 0
        self.granted += granted
        stored, kept = stored - granted, kept + granted
        if granted > 0 or want == 0:
            longest, since, claim = now if since <= longest else longest, now, max(-1, min(claim, want) - granted)
        longest = min(longest, since)
        share = 0
        if leaves or (demand == 0 and kept == 0):
            stored = stored + kept if leaves else stored
            fields.pop(member_id, None)
        else:
            least = weights * min(1 / (asking + 1), MIN_PER_S / max(rate, MIN_PER_S))
            weight = max(demand, least) if demand > 0 else 0.0
            weights, claims, held, asking = (
                weights + weight,
                claims + max(0, claim),
                held + max(-advance, kept),
                asking + 1,
            )
            share = floor(weight / max(weights, 1e-9) * 1e6)
            fields[member_id] = [spent, kept, weight, v, claim, advance, since]
        fields[""] = [now, stored, v, weights, claims, held, longest, asking, removed_at]
        return [granted, share, int(since > longest and now - longest > STOPPED_US)]
