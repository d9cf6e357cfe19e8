"""Who gets what: tenants beside one another, and how even the service is among those who wait."""

from gateway.dashboards.board import Board, Panel, Query, Row
from gateway.dashboards.metric import least, of, part, rate, total

TENANT = "{{tenant}}"


EVEN = Row(
    "Evenness",
    (
        Panel(
            title="Jain's index",
            text="1: all who waited all the time got the same for their weight. The least even "
            "level and gateway count.",
            queries=(Query(least(of("fairness_jain_index"), "tier"), "{{tier}}"),),
            most=1.0,
            width=12,
        ),
        Panel(
            title="Tokens by tier",
            text="Prompt and output, a second.",
            queries=(Query(total(rate("tokens_total", 'kind!="cached"'), "tier"), "{{tier}}"),),
            is_stacked=True,
            width=12,
        ),
    ),
)

TENANTS = Row(
    "Tenants: those that use most, and all others as `other`",
    (
        Panel(
            title="Tokens",
            text="Prompt and output, a second.",
            queries=(
                Query(total(rate("tenant_tokens_total", 'kind!="cached"'), "tenant"), TENANT),
            ),
            is_stacked=True,
            width=12,
        ),
        Panel(
            title="Requests",
            text="That ended, a second.",
            queries=(Query(total(rate("tenant_requests_total"), "tenant"), TENANT),),
            unit="reqps",
            is_stacked=True,
            width=12,
        ),
        Panel(
            title="Waiting",
            text="Who asks for more than there is.",
            queries=(Query(total(of("tenant_waiting"), "tenant"), TENANT),),
            is_stacked=True,
        ),
        Panel(
            title="Mean wait",
            text="Of requests that ended: light tenants should wait for less.",
            queries=(
                Query(
                    part(
                        total(rate("tenant_queue_seconds_total"), "tenant"),
                        total(rate("tenant_requests_total"), "tenant"),
                    ),
                    TENANT,
                ),
            ),
            unit="s",
        ),
        Panel(
            title="Prompt tokens from cache",
            text="Share of prompt tokens that engines had cached.",
            queries=(
                Query(
                    part(
                        total(rate("tenant_tokens_total", 'kind="cached"'), "tenant"),
                        total(rate("tenant_tokens_total", 'kind="prompt"'), "tenant"),
                    ),
                    TENANT,
                ),
            ),
            unit="percentunit",
        ),
    ),
)

LIMITS = Row(
    "Limits",
    (
        Panel(
            title="Refused by limits",
            text="A second, by what was limited and whose it was.",
            queries=(
                Query(
                    total(rate("limit_refusals_total"), "limit", "scope"), "{{limit}} of {{scope}}"
                ),
            ),
            unit="reqps",
            width=12,
        ),
        Panel(
            title="Kept back by caps",
            text="They do not even wait: who sent them has as much running as it may.",
            queries=(Query(total(of("flow_control_held"), "tier"), "{{tier}}"),),
            is_stacked=True,
            width=12,
        ),
    ),
)

BOARD = Board(
    uid="fairgate-fairness",
    title="fairgate / fairness",
    text="Who gets what, and how even the service is among those who wait.",
    rows=(EVEN, TENANTS, LIMITS),
)
