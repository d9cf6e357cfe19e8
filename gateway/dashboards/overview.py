"""The first look: who waits, what each tier gets for what it was promised, and what is short."""

from gateway.dashboards.board import Board, Kind, Panel, Query, Row
from gateway.dashboards.metric import least, mean, most, of, part, quantile, rate, recorded, total

TIER = "{{tier}}"
LATE = ((0.01, "orange"), (0.05, "red"))


def _figure(title: str, text: str, expr: str, **options: object) -> Panel:
    return Panel(
        title=title, text=text, queries=(Query(expr),), kind=Kind.FIGURE, width=4, height=4,
        **options,  # type: ignore[arg-type]  # fields of Panel by name
    )  # fmt: skip


def _burn(window: str) -> str:
    missed = recorded(f"job_tier:fairgate_missed:ratio_rate{window}")
    return f"{missed} / on () group_left () (1 - fairgate:slo_objective:ratio)"


NOW = Row(
    "Now",
    (
        _figure(
            "Waiting", "Requests that wait for a replica.", total(of("flow_control_queue_size"))
        ),
        _figure("Running", "Requests that replicas have.", total(of("flow_control_running"))),
        _figure(
            "Requests", "Requests that ended, a second.",
            total(rate("flow_control_requests_total")), unit="reqps",
        ),
        _figure(
            "Missed", "Share that missed the targets of its tier.",
            part(
                total(rate("goodput_requests_total", 'met="false"')),
                total(rate("goodput_requests_total")),
            ),
            unit="percentunit", thresholds=LATE,
        ),
        _figure(
            "Saturation", "Slots in use of those known; the fullest pool.",
            most(of("flow_control_pool_saturation")), unit="percentunit",
            thresholds=((0.8, "orange"), (1.0, "red")),
        ),
        _figure(
            "Replicas", "Replicas that answer.",
            f"count({most(of('replica_up'), 'replica')} == 1) or vector(0)",
        ),
    ),
)  # fmt: skip

LINES = Row(
    "Who waits",
    (
        Panel(
            title="Waiting by tier",
            text="A lower tier waits while a higher one is served: that is strict order.",
            queries=(Query(total(of("flow_control_queue_size"), "tier"), TIER),),
            is_stacked=True,
        ),
        Panel(
            title="Oldest wait",
            text="How long the one has waited that waits for longest.",
            queries=(Query(most(of("flow_control_oldest_wait_seconds"), "tier"), TIER),),
            unit="s",
        ),
        Panel(
            title="Expected wait, of patience",
            text="Above 1 who comes now will be refused for want of patience.",
            queries=(
                Query(
                    part(
                        most(of("flow_control_expected_wait_seconds"), "tier"),
                        most(of("tier_patience_seconds"), "tier"),
                    ),
                    TIER,
                ),
            ),
            unit="percentunit",
            thresholds=((1.0, "red"),),
        ),
        Panel(
            title="Running by tier",
            text="What replicas have of each tier.",
            queries=(Query(total(of("flow_control_running"), "tier"), TIER),),
            is_stacked=True,
        ),
        Panel(
            title="Queue time, p95",
            text="From arrival to release or refusal. Exemplars lead to requests.",
            queries=(
                Query(quantile(0.95, "flow_control_request_queue_duration_seconds", "tier"), TIER),
            ),
            unit="s",
        ),
        Panel(
            title="Waiting by model",
            text="Models that share replicas share a line.",
            queries=(Query(total(of("flow_control_queue_size"), "model"), "{{model}}"),),
            is_stacked=True,
        ),
    ),
)

SERVICE = Row(
    "What tiers get",
    (
        Panel(
            title="First token, p95 and target",
            text="Queueing included. Targets are the flat lines.",
            queries=(
                Query(quantile(0.95, "request_ttft_seconds", "tier"), TIER),
                Query(least(of("tier_ttft_target_seconds"), "tier"), f"{TIER}, target"),
            ),
            unit="s",
        ),
        Panel(
            title="Time per further token, p95 and target",
            text="Of streams, after their first token.",
            queries=(
                Query(quantile(0.95, "request_streaming_tpot_seconds", "tier"), TIER),
                Query(least(of("tier_tpot_target_seconds"), "tier"), f"{TIER}, target"),
            ),
            unit="s",
        ),
        Panel(
            title="Whole answer, mean",
            text="Arrival to the last byte.",
            queries=(Query(mean("request_duration_seconds", "tier"), TIER),),
            unit="s",
        ),
        Panel(
            title="Met their targets",
            text="Share of requests; what clients did wrong themselves does not count.",
            queries=(
                Query(
                    part(
                        total(rate("goodput_requests_total", 'met="true"'), "tier"),
                        total(rate("goodput_requests_total"), "tier"),
                    ),
                    TIER,
                ),
            ),
            unit="percentunit",
            most=1.0,
        ),
        Panel(
            title="How requests ended",
            text="A second, by outcome: `done`, or the code of the error that the client got.",
            queries=(Query(total(rate("flow_control_requests_total"), "outcome"), "{{outcome}}"),),
            unit="reqps",
            is_stacked=True,
        ),
        Panel(
            title="Tokens",
            text="A second, by kind; cached ones are part of the prompts.",
            queries=(Query(total(rate("tokens_total"), "kind"), "{{kind}}"),),
        ),
        Panel(
            title="First token, all tiers",
            text="The darker, the more requests.",
            queries=(Query(total(rate("request_ttft_seconds_bucket"), "le"), "{{le}}"),),
            unit="s",
            kind=Kind.HEAT,
            width=24,
        ),
    ),
)

BUDGET = Row(
    "Error budget",
    (
        Panel(
            title="Burn in 1 h",
            text="Times as fast as the budget allows; from 14.4 on somebody is woken.",
            queries=(Query(_burn("1h"), TIER),),
            width=12,
            thresholds=((1.0, "orange"), (14.4, "red")),
        ),
        Panel(
            title="Burn in 6 h",
            text="From 6 on there is a ticket.",
            queries=(Query(_burn("6h"), TIER),),
            width=12,
            thresholds=((1.0, "orange"), (6.0, "red")),
        ),
    ),
)

BOARD = Board(
    uid="fairgate-overview",
    title="fairgate / overview",
    text="Who waits, what each tier gets for what it was promised, and what is short.",
    rows=(NOW, LINES, SERVICE, BUDGET),
)
