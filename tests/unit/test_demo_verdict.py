"""The demo's last words: the claims, held against what was measured."""

from gateway.demo.plan import PolicyName, planned
from gateway.demo.tally import Tally, Waits
from gateway.demo.verdict import Outcome, Verdict, outcome_of, verdict_lines, verdict_of


def waits(mean_s: float, *, is_at_least: bool = False) -> Waits:
    """Waits of ten requests."""
    return Waits(count=10, mean_s=mean_s, p95_s=2 * mean_s, is_at_least=is_at_least)


def verdict(**flooded_s: float) -> Verdict:
    """A verdict with 0.03 s alone and a release interval of 0.25 s."""
    flooded: dict[PolicyName, Waits] = {}
    if "fair" in flooded_s:
        flooded["fair"] = waits(flooded_s["fair"])
    if "fifo" in flooded_s:
        flooded["fifo"] = waits(flooded_s["fifo"], is_at_least=True)
    return Verdict(alone=waits(0.03), flooded=flooded, release_interval_s=0.25)


def outcome(policy: PolicyName, *, is_flooded: bool, mean_s: float | None) -> Outcome:
    """What a phase came to."""
    return Outcome(
        policy=policy,
        is_flooded=is_flooded,
        light_waits=None if mean_s is None else waits(mean_s),
        release_interval_s=0.25,
        complaint=None,
    )


def test_fair_holds_up_to_its_bound_and_not_beyond() -> None:
    """A bound that everything passes would prove nothing to whoever runs the demo."""
    assert verdict(fair=0.544).is_fair is True
    assert verdict(fair=0.546).is_fair is False


def test_fifo_is_called_slow_from_ten_times_alone() -> None:
    """Below that the contrast would be an exaggeration."""
    assert verdict(fifo=0.301).is_fifo_slow is True
    assert verdict(fifo=0.299).is_fifo_slow is False


def test_the_words_hold_all_figures() -> None:
    """Who doubts the verdict must be able to do the sum."""
    text = "\n".join(verdict_lines(verdict(fair=0.3, fifo=9.0)))
    assert "0.300 s <= 1.5 x 0.030 s + 2 x 0.250 s = 0.545 s: yes" in text
    assert "9.000 s >= 10 x 0.030 s = 0.300 s: yes" in text
    assert ">= 9.000 s" in text
    assert "every 0.250 s" in text


def test_a_missed_bound_is_said_loudly() -> None:
    """A demo that hides its failure is advertising."""
    assert verdict_lines(verdict(fair=0.9))[-1].endswith("NO")


def test_what_was_not_shown_is_not_judged() -> None:
    """`--policy fifo` says nothing about fair, and must not claim to."""
    assert verdict(fifo=9.0).is_fair is None
    assert "fair" not in "\n".join(verdict_lines(verdict(fifo=9.0)))
    assert "fifo" not in "\n".join(verdict_lines(verdict(fair=0.3)))


def test_a_phase_without_figures_leaves_no_verdict() -> None:
    """Half a comparison would be read as a whole one."""
    alone = outcome("fair", is_flooded=False, mean_s=0.03)
    fair = outcome("fair", is_flooded=True, mean_s=0.3)
    nothing = outcome("fifo", is_flooded=True, mean_s=None)
    assert verdict_of([alone, fair, nothing]) is None
    assert verdict_of([alone]) is None
    assert verdict_of([fair]) is None
    found = verdict_of([alone, fair])
    assert found is not None
    assert found.fair_bound_s == 0.545


def test_an_outcome_speaks_of_the_light_users_and_of_the_steady_time() -> None:
    """The power user's waits are meant to be long; they are nobody's complaint."""
    phase = planned(("fair",), 35.0)[1]
    assert phase.length_s is not None
    tally = Tally(user.name for user in phase.users)
    for user, wait_s in (("alice", 0.2), ("bob", 0.4), ("batch-bot", 9.0)):
        account = tally.accounts[user]
        account.begin(account.send(100.0), 100.0 + wait_s)
    tally.end(100.5)
    tally.end(110.0)
    found = outcome_of(phase, tally, replicas=2, began_at=100.0, ended_at=100.0 + phase.length_s)
    assert found.light_waits is not None
    assert round(found.light_waits.mean_s, 3) == 0.3
    assert found.release_interval_s == 2 * (phase.length_s - 1.0)
