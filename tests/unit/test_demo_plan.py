"""The demo's phases: who sends in them, through which gateway, and how the time is shared."""

import pytest

from gateway.demo.plan import (
    LIGHT_USERS,
    PAUSE_S_MAX,
    PAUSE_S_MIN,
    PHASES_S_MIN,
    POWER_USER,
    Phase,
    endless,
    planned,
    policies_shown,
)


def test_without_a_policy_fair_is_shown_beside_fifo() -> None:
    """The contrast is the point: who runs the demo must see both."""
    assert policies_shown(None) == ("fair", "fifo")


@pytest.mark.parametrize("policy", ["fair", "fifo"])
def test_with_a_policy_only_its_flood_follows_the_light_users_alone(policy: str) -> None:
    """Who asks for one policy would otherwise wait for the other."""
    shown = policies_shown("fifo" if policy == "fifo" else "fair")
    phases = planned(shown, 30.0)
    assert [phase.name for phase in phases] == ["alone", policy]
    assert {phase.policy for phase in phases} == {policy}


@pytest.mark.parametrize("length_s", [10.0, 45.0, 600.0])
def test_the_phases_share_the_whole_time(length_s: float) -> None:
    """`--seconds 10` in a script must not take a minute."""
    phases = planned(("fair", "fifo"), length_s)
    assert sum(phase.length_s or 0.0 for phase in phases) == pytest.approx(length_s)


def test_too_short_a_demo_takes_long_enough_for_figures() -> None:
    """A second of load would show accidents as results."""
    phases = planned(("fair", "fifo"), 0.5)
    assert sum(phase.length_s or 0.0 for phase in phases) == pytest.approx(PHASES_S_MIN)


def test_only_the_first_phase_is_without_the_power_user() -> None:
    """The waits alone are the measure of all others; a flood in them would hide everything."""
    alone, fair, fifo = planned(("fair", "fifo"), 45.0)
    assert alone.users == LIGHT_USERS
    assert fair.users == fifo.users == (*LIGHT_USERS, POWER_USER)


@pytest.mark.parametrize("length_s", [PHASES_S_MIN, 45.0, 600.0])
def test_light_users_send_alike_in_all_phases(length_s: float) -> None:
    """With different loads the waits of two phases could not be compared."""
    pauses_s = {phase.pause_s for phase in planned(("fair", "fifo"), length_s)}
    assert len(pauses_s) == 1
    assert PAUSE_S_MIN <= pauses_s.pop() <= PAUSE_S_MAX


@pytest.mark.parametrize("length_s", [PHASES_S_MIN, 45.0])
def test_every_light_user_has_time_for_a_first_request(length_s: float) -> None:
    """A phase in which somebody sent nothing has no figures for them."""
    for phase in planned(("fair", "fifo"), length_s):
        assert phase.length_s is not None
        assert phase.sending_until_s is not None
        assert phase.first_within_s > 0.0
        assert phase.lead_s + phase.first_within_s < phase.sending_until_s < phase.length_s


def test_light_users_wait_until_the_flood_is_there() -> None:
    """Sent before the flood, their requests would show the waits of an empty house."""
    alone, fair, fifo = planned(("fair", "fifo"), 45.0)
    assert alone.lead_s == 0.0
    assert fair.lead_s > fifo.lead_s > 0.0


def test_the_load_after_the_verdict_has_no_end() -> None:
    """Who watches the table must not have it taken away."""
    phase: Phase = endless(("fifo",))
    assert phase.length_s is None
    assert phase.sending_until_s is None
    assert (phase.policy, phase.is_flooded) == ("fifo", True)
    assert phase.first_within_s == phase.pause_s


def test_the_power_user_wants_many_times_what_there_is() -> None:
    """With fewer requests than the eight slots of both replicas nobody would ever wait."""
    assert 60 <= POWER_USER.outstanding <= 100
    assert all(user.output_tokens_max < POWER_USER.output_tokens_max for user in LIGHT_USERS)
