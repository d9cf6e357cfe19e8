"""Who should have got how much: weighted max-min shares, and a verdict with a margin."""

from collections.abc import Iterable, Mapping


def max_min(
    capacity: float, demands: Mapping[str, float], weights: Mapping[str, float]
) -> dict[str, float]:
    """Shares of `capacity`: nobody gets more than it asked for, the rest is split by weight."""
    shares: dict[str, float] = {}
    left, open_users = capacity, dict(demands)
    while open_users:
        per_weight = left / sum(weights.get(user, 1.0) for user in open_users)
        content = {
            user: demand
            for user, demand in open_users.items()
            if demand <= per_weight * weights.get(user, 1.0)
        }
        if not content:
            for user in open_users:
                shares[user] = per_weight * weights.get(user, 1.0)
            break
        for user, demand in content.items():
            shares[user] = demand
            left -= demand
            del open_users[user]
    return shares


def unfair(
    served: Mapping[str, float],
    demands: Mapping[str, float],
    weights: Mapping[str, float],
    *,
    margin: float,
) -> list[str]:
    """Everybody who got too little or too much, by more than `margin` of the share."""
    shares = max_min(sum(served.values()), demands, weights)
    return [
        f"{user}: {served.get(user, 0.0):.0f} of {share:.0f}"
        for user, share in sorted(shares.items())
        if abs(served.get(user, 0.0) - share) > margin * share
    ]


def backlogged(users: Iterable[str]) -> dict[str, float]:
    """Demands of users who always have more."""
    return dict.fromkeys(users, float("inf"))
