"""Faults of the protocol, each planted on purpose: the judge has to notice every one of them."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from gateway.cluster import abroad, deciders, follower, leader, member
from gateway.cluster.deciders import Deciders
from gateway.cluster.follower import Fit, Follower
from gateway.cluster.guests import Coming, Guest, Taking
from gateway.cluster.leader import Leadership
from gateway.cluster.member import Member
from gateway.cluster.messages import Decided, Led, Message, Told
from gateway.cluster.ports import Leader
from gateway.core.messages import Arrived
from tests.simulation.cluster.store import Store

Plant = Callable[[pytest.MonkeyPatch], None]


def no_numbers_from_the_leader(patch: pytest.MonkeyPatch) -> None:
    """A follower believes whatever comes in its session, twice or with something missing."""

    def hear(self: Follower, message: Led | Decided, now: float) -> Fit:
        if message.session == 0:
            return Fit.GAP if now - self.synced_at >= follower.RESYNC_S else Fit.OLD
        self.heard_at = now
        return Fit.NEXT if message.session == self.session else Fit.OLD

    patch.setattr(Follower, "hear", hear)


def no_numbers_from_followers(patch: pytest.MonkeyPatch) -> None:
    """A leader believes whatever comes in a session."""

    def takes(self: Guest, message: Told, now: float) -> bool:
        self.heard_at = now
        self.told = message.number
        return message.session == self.session

    patch.setattr(Guest, "takes", takes)


def no_sessions(patch: pytest.MonkeyPatch) -> None:
    """A follower believes what was decided before it told everything anew."""
    before = Follower.hear

    def hear(self: Follower, message: Led | Decided, now: float) -> Fit:
        if isinstance(message, Decided) and message.session < self.session:
            return Fit.NEXT
        return before(self, message, now)

    patch.setattr(Follower, "hear", hear)


def no_fencing(patch: pytest.MonkeyPatch) -> None:
    """A leader of the past is believed, and none of them looks whether its lease has ended."""

    def hear_of(self: Deciders, own: Follower, heard: Leader, now: float, *, is_word: bool) -> None:
        if heard.gateway != own.leader and not self.is_apart and own.pool not in self.led:
            own.follow(heard, now)
            self._settle(own, now)

    patch.setattr(Deciders, "hear_of", hear_of)
    patch.setattr(Deciders, "lose_lease", lambda self, now: None)
    patch.setattr(Store, "is_fenced", False)


def no_end_of_the_lease(patch: pytest.MonkeyPatch) -> None:
    """A leader that slept decides on as if nothing had happened."""
    patch.setattr(Deciders, "lose_lease", lambda self, now: None)


def no_gathering(patch: pytest.MonkeyPatch) -> None:
    """A new leader grants before it knows what runs."""
    before = Leadership.__init__

    def init(self: Leadership, *args: Any, **named: Any) -> None:
        before(self, *args, **named)
        self.gather_until = float("-inf")

    patch.setattr(Leadership, "__init__", init)
    patch.setattr(Leadership, "_inherit", lambda self, now: None)


def no_word_of_what_runs(patch: pytest.MonkeyPatch) -> None:
    """A follower tells a new leader only what waits."""
    before = Follower.sync

    def sync(self: Follower, session: int, requests: Any, now: float, **named: Any) -> Any:
        waiting = tuple(each for each in requests if not each.replica)
        return before(self, session, waiting, now, **named)

    patch.setattr(Follower, "sync", sync)


def no_shares(patch: pytest.MonkeyPatch) -> None:
    """Whoever is alone takes every replica for itself."""
    patch.setattr(Deciders, "_share", lambda self, now: None)


def no_way_home(patch: pytest.MonkeyPatch) -> None:
    """What waits for a leader waits for ever when there is none."""
    before = Deciders._settle

    def settle(self: Deciders, own: Follower, now: float) -> None:
        if own.phase is not follower.Phase.ALONE:
            before(self, own, now)

    patch.setattr(Deciders, "_settle", settle)
    for module in (deciders, member):
        patch.setattr(module, "DECIDES", frozenset({follower.Phase.LEADING}))


def no_giving_up(patch: pytest.MonkeyPatch) -> None:
    """Whatever a dead gateway had is held for ever."""
    patch.setattr(leader, "GIVE_UP_S", 1e9)
    patch.setattr(leader, "SILENT_S", 1e9)


def no_heartbeat_of_the_leader(patch: pytest.MonkeyPatch) -> None:
    """Nobody notices that the last of what was decided got lost."""
    before = Member._hear

    def hear(self: Member, message: Message, now: float) -> None:
        if isinstance(message, Led) and message.session:
            own = self.followers.get(message.pool)
            if own is not None and message.session == own.session:
                own.heard_at = now
                return
        before(self, message, now)

    patch.setattr(Member, "_hear", hear)


def judged_again(patch: pytest.MonkeyPatch) -> None:
    """Who was let in by one gateway is judged by the next that decides."""

    def come(to: Taking, coming: Iterable[Coming], now: float) -> None:
        for request, _ in sorted(coming, key=lambda each: each[0].arrived_at):
            to.feed(Arrived(request), now)

    patch.setattr(leader, "come", come)
    patch.setattr(abroad, "come", come)


def no_names_of_tiers(patch: pytest.MonkeyPatch) -> None:
    """A rank means the same everywhere, also while a reload goes round."""
    patch.setattr(Guest, "rank", lambda self, names, policy: None)


def no_new_ranks_for_what_is_gathered(patch: pytest.MonkeyPatch) -> None:
    """A reload passes over what waits for a new leader to begin."""
    patch.setattr(Leadership, "rank_anew", lambda self, ranks: None)


PLANTED: tuple[tuple[Plant, str], ...] = (
    (no_numbers_from_the_leader, "lossy"),
    (no_numbers_from_followers, "lossy"),
    (no_sessions, "lossy"),
    (no_fencing, "stalls"),
    (no_end_of_the_lease, "stalls"),
    (no_gathering, "crashes"),
    (no_word_of_what_runs, "crashes"),
    (no_shares, "frozen"),
    (no_way_home, "parted"),
    (no_giving_up, "crashes"),
    (no_heartbeat_of_the_leader, "lossy"),
    (judged_again, "frozen"),
    (no_names_of_tiers, "lossy"),
    (no_new_ranks_for_what_is_gathered, "lossy"),
)
"""Each with the kind of seeds that shows it."""
