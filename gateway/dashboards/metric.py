"""How the queries of all dashboards are made: one choice of gateways, one form for each metric."""

RATE = "[$__rate_interval]"


def of(name: str, *matchers: str) -> str:
    """The metric, of the gateways that are chosen; `matchers` as PromQL writes them."""
    chosen = ('job=~"$job"', 'instance=~"$instance"', *matchers)
    return f"fairgate_{name}{{{', '.join(chosen)}}}"


def recorded(name: str, *matchers: str) -> str:
    """A series that a recording rule made, of the deployments that are chosen."""
    chosen = ('job=~"$job"', *matchers)
    return f"{name}{{{', '.join(chosen)}}}"


def rate(name: str, *matchers: str) -> str:
    """Per second."""
    return f"rate({of(name, *matchers)}{RATE})"


def total(value: str, *labels: str) -> str:
    """Summed over all gateways, by labels."""
    return f"sum by ({', '.join(labels)}) ({value})" if labels else f"sum({value})"


def most(value: str, *labels: str) -> str:
    """The largest over all gateways, by labels."""
    return f"max by ({', '.join(labels)}) ({value})" if labels else f"max({value})"


def least(value: str, *labels: str) -> str:
    """The smallest over all gateways, by labels."""
    return f"min by ({', '.join(labels)}) ({value})" if labels else f"min({value})"


def quantile(share: float, name: str, *labels: str) -> str:
    """Of a histogram, by labels."""
    by = total(rate(f"{name}_bucket"), *labels, "le")
    return f"histogram_quantile({share}, {by})"


def mean(name: str, *labels: str) -> str:
    """Of a histogram, by labels."""
    return f"{total(rate(f'{name}_sum'), *labels)} / {total(rate(f'{name}_count'), *labels)}"


def part(share: str, whole: str) -> str:
    """One value as a part of another."""
    return f"{share} / {whole}"
