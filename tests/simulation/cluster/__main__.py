"""Play many seeds and tell which went wrong: `python -m tests.simulation.cluster 0 1000`."""

import sys
from collections import defaultdict

from tests.simulation.cluster.trial import Outcome, played

TELL_EVERY = 50


def main(first: int, last: int) -> int:
    """Exit status 1 where any seed went wrong."""
    by_kind: dict[str, list[Outcome]] = defaultdict(list)
    bad = 0
    for seed in range(first, last):
        outcome = played(seed)
        by_kind[outcome.kind].append(outcome)
        if (seed + 1 - first) % TELL_EVERY == 0:
            sys.stderr.write(f"{seed + 1 - first} played, {bad} wrong\n")
        if outcome.faults:
            bad += 1
            sys.stdout.write(f"seed {seed} ({outcome.kind}): {'; '.join(outcome.faults[:4])}\n")
    for kind, outcomes in by_kind.items():
        over = max(each.most_over for each in outcomes)
        excess = max(each.excess for each in outcomes)
        gap_s = max(each.gap_s for each in outcomes)
        resyncs = sum(each.resyncs for each in outcomes)
        sys.stdout.write(
            f"{kind}: {len(outcomes)} seeds, at most {over} too many, {excess} without those of "
            f"the alone, at most {gap_s:.2f} s without a grant, {resyncs} resyncs\n"
        )
    sys.stdout.write(f"{last - first} seeds, {bad} wrong\n")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
