"""The replicas: what they carry, which gates are shut and why, and whether they are well."""

from gateway.dashboards.board import Board, Kind, Panel, Query, Row
from gateway.dashboards.metric import least, most, of, part, quantile, rate, total

REPLICA = "{{replica}}"
UP = (("0", "away", "red"), ("1", "up", "green"))
GATE = (("0", "shut", "orange"), ("1", "open", "green"))
BREAKER = (("0", "closed", "green"), ("1", "half open", "orange"), ("2", "open", "red"))


STATES = Row(
    "States",
    (
        Panel(
            title="Answers",
            text="Of its probe, as the gateway sees it that sees least.",
            queries=(Query(least(of("replica_up"), "replica"), REPLICA),),
            kind=Kind.STATES,
            words=UP,
        ),
        Panel(
            title="Breaker",
            text="Open: it failed too often, and nothing new goes there for a while.",
            queries=(Query(most(of("replica_breaker_state"), "replica"), REPLICA),),
            kind=Kind.STATES,
            words=BREAKER,
        ),
        Panel(
            title="Drains",
            text="It only finishes what runs there.",
            queries=(Query(most(of("replica_draining"), "replica"), REPLICA),),
            kind=Kind.STATES,
            words=(("0", "serves", "green"), ("1", "drains", "blue")),
        ),
        Panel(
            title="Gates",
            text="Whether a tier may release an ordinary request there now.",
            queries=(
                Query(most(of("replica_gate_open"), "replica", "tier"), "{{replica}} / {{tier}}"),
            ),
            kind=Kind.STATES,
            words=GATE,
            width=12,
            height=10,
        ),
        Panel(
            title="Why gates are shut",
            text="Gates shut by each reason; docs/scheduling.md explains them.",
            queries=(Query(total(of("replica_gate_closed"), "reason"), "{{reason}}"),),
            is_stacked=True,
            width=12,
            height=10,
        ),
    ),
)

LOAD = Row(
    "Load",
    (
        Panel(
            title="Ours there, and slots",
            text="Sequences of these gateways; dashes are what it can run at once.",
            queries=(
                Query(total(of("replica_inflight"), "replica"), REPLICA),
                Query(most(of("replica_slots"), "replica"), f"{REPLICA}, slots"),
            ),
        ),
        Panel(
            title="Freeness",
            text="For tier 0, in free slots' worth; below 0 it has more than it can hold.",
            least=None,
            queries=(
                Query(
                    least(
                        of("replica_freeness"),
                        "replica",
                    ),
                    REPLICA,
                ),
            ),
        ),
        Panel(
            title="Saturation",
            text="Share of known slots in use, by pool.",
            queries=(Query(most(of("flow_control_pool_saturation"), "pool"), "{{pool}}"),),
            unit="percentunit",
        ),
        Panel(
            title="Waits inside engines",
            text="Should be near 0: what waits there has lost its order.",
            queries=(Query(most(of("replica_waiting_estimate"), "replica"), REPLICA),),
        ),
        Panel(
            title="Of others",
            text="Sequences that did not come through these gateways.",
            queries=(Query(most(of("replica_foreign"), "replica"), REPLICA),),
        ),
        Panel(
            title="KV cache",
            text="Share in use.",
            queries=(
                Query(
                    part(
                        most(of("replica_kv_tokens"), "replica"),
                        most(of("replica_kv_capacity_tokens"), "replica"),
                    ),
                    REPLICA,
                ),
            ),
            unit="percentunit",
            most=1.0,
        ),
        Panel(
            title="Time per token",
            text="As measured on each replica; its gate shuts at the limit of a tier.",
            queries=(Query(most(of("replica_tpot_seconds"), "replica"), REPLICA),),
            unit="s",
        ),
        Panel(
            title="Limit learnt from speed",
            text="Sequences that it gets at most.",
            queries=(Query(least(of("replica_inflight_limit"), "replica"), REPLICA),),
        ),
        Panel(
            title="Replicas advised, and there",
            text="What an autoscaler should make of it.",
            queries=(
                Query(most(of("scale_advised_replicas"), "model"), "{{model}}, advised"),
                Query(f"count({most(of('replica_up'), 'replica')} == 1)", "there"),
            ),
        ),
    ),
)

HEALTH = Row(
    "Health",
    (
        Panel(
            title="Silent with work",
            text="Seconds without a sign of work while it has some of ours.",
            queries=(Query(most(of("replica_silent_seconds"), "replica"), REPLICA),),
            unit="s",
            thresholds=((60.0, "red"),),
        ),
        Panel(
            title="Age of its metrics",
            text="Older than three scrape intervals they are not believed.",
            queries=(Query(most(of("replica_report_age_seconds"), "replica"), REPLICA),),
            unit="s",
        ),
        Panel(
            title="Retries and moves",
            text="A second: attempts beyond the first, streams that went on elsewhere, and "
            "requests that were taken back before they began.",
            queries=(
                Query(total(rate("retries_total")), "retries"),
                Query(total(rate("migrations_total"), "kind"), "{{kind}}"),
            ),
        ),
        Panel(
            title="Queue time on refusal and release, p99",
            text="By outcome.",
            queries=(
                Query(
                    quantile(0.99, "flow_control_request_queue_duration_seconds", "outcome"),
                    "{{outcome}}",
                ),
            ),
            unit="s",
            width=24,
        ),
    ),
)

BOARD = Board(
    uid="fairgate-fleet",
    title="fairgate / fleet",
    text="What replicas carry, which gates are shut and why, and whether they are well.",
    rows=(STATES, LOAD, HEALTH),
)
