"""The gateways themselves: their loop, memory and files, their store, and one another."""

from gateway.dashboards.board import Board, Kind, Panel, Query, Row
from gateway.dashboards.metric import most, of, quantile, rate, total

GATEWAY = "{{instance}}"
DEGRADED = (("0", "one of many", "green"), ("1", "alone", "red"))
STORE = (("0", "lost", "red"), ("1", "up", "green"))


def _each(value: str) -> tuple[Query, ...]:
    return (Query(value, GATEWAY),)


OWN = Row(
    "Its own cost",
    (
        Panel(
            title="Overhead, p50 and p99",
            text="The gateway's own time before it sends a request on, queueing excluded.",
            queries=(
                Query(quantile(0.5, "relay_overhead_seconds"), "p50"),
                Query(quantile(0.99, "relay_overhead_seconds"), "p99"),
            ),
            unit="s",
        ),
        Panel(
            title="Lag of the event loop, p99 and longest",
            text="All requests wait at least as long.",
            queries=(
                Query(quantile(0.99, "event_loop_lag_seconds", "instance"), f"{GATEWAY}, p99"),
                Query(most(of("event_loop_lag_max_seconds"), "instance"), f"{GATEWAY}, longest"),
            ),
            unit="s",
        ),
        Panel(
            title="CPU",
            text="Cores in use; one gateway process uses one at most for requests.",
            queries=_each(rate("process_cpu_seconds_total")),
        ),
        Panel(
            title="Memory",
            text="Resident.",
            queries=_each(of("process_resident_memory_bytes")),
            unit="bytes",
        ),
        Panel(
            title="Bodies",
            text="Bytes of all bodies that come, wait and run.",
            queries=_each(of("body_bytes")),
            unit="bytes",
        ),
        Panel(
            title="Files",
            text="Share of the file descriptors that are in use.",
            queries=_each(f"{of('process_open_fds')} / {of('process_max_fds')}"),
            unit="percentunit",
            most=1.0,
        ),
    ),
)

DOORS = Row(
    "Doors",
    (
        Panel(
            title="Requests inside",
            text="Let in and not ended; a shutdown waits for them.",
            queries=_each(of("requests_inside")),
        ),
        Panel(
            title="Kept out",
            text="A second, since the gateway itself has too much to do.",
            queries=_each(rate("requests_kept_out_total")),
            unit="reqps",
        ),
        Panel(
            title="Connections turned away",
            text="A second, beyond the bound on connections.",
            queries=_each(rate("connections_turned_away_total")),
        ),
        Panel(
            title="Lines of the request log that were lost",
            text="A second, by reason; nothing where there is no log.",
            queries=(
                Query(
                    total(rate("request_log_dropped_lines_total"), "instance", "reason"),
                    f"{GATEWAY}, {{{{reason}}}}",
                ),
            ),
        ),
        Panel(
            title="Store",
            text="Lost: operators can change nothing, traffic goes on.",
            queries=_each(most(of("store_up"), "instance")),
            kind=Kind.STATES,
            words=STORE,
        ),
        Panel(
            title="Revision in force",
            text="The same on all gateways, a moment after each change.",
            queries=_each(most(of("policy_revision"), "instance")),
        ),
    ),
)

CLUSTER = Row(
    "Together (only where several gateways act as one)",
    (
        Panel(
            title="Alone or together",
            text="Alone: within its part of each replica, and fair only in itself.",
            queries=_each(most(of("cluster_degraded"), "instance")),
            kind=Kind.STATES,
            words=DEGRADED,
        ),
        Panel(
            title="Phase",
            text="One leads each pool, the others follow.",
            queries=(
                Query(
                    f"{most(of('cluster_phase'), 'instance', 'pool', 'phase')} == 1",
                    f"{GATEWAY}, {{{{pool}}}}: {{{{phase}}}}",
                ),
            ),
            kind=Kind.STATES,
        ),
        Panel(
            title="Gateways that it sees",
            text="All should see the same number.",
            queries=_each(most(of("cluster_gateways"), "instance")),
        ),
        Panel(
            title="Followers",
            text="Gateways that it decides for.",
            queries=(
                Query(
                    most(of("cluster_followers"), "instance", "pool"),
                    f"{GATEWAY}, {{{{pool}}}}",
                ),
            ),
        ),
        Panel(
            title="Epochs",
            text="Each new leader begins one.",
            queries=(Query(most(of("cluster_epoch"), "pool"), "{{pool}}"),),
        ),
        Panel(
            title="Begun anew, and store lost",
            text="A second.",
            queries=(
                Query(total(rate("cluster_resyncs_total"), "instance"), f"{GATEWAY}, anew"),
                Query(total(rate("cluster_losses_total"), "instance"), f"{GATEWAY}, lost"),
            ),
        ),
    ),
)

VERSIONS = Row(
    "Versions",
    (
        Panel(
            title="Gateways",
            text="Version, interpreter, and whether the hot path is compiled.",
            queries=(Query(of("build_info")),),
            kind=Kind.TABLE,
            width=24,
            height=6,
        ),
    ),
)

BOARD = Board(
    uid="fairgate-gateways",
    title="fairgate / gateways",
    text="The gateways themselves: loop, memory and files, their store, and one another.",
    rows=(OWN, DOORS, CLUSTER, VERSIONS),
)
