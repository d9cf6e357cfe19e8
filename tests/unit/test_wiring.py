"""The composition root: what one layer decides reaches the other that has to tell or to do it."""

import logging

import pytest

from gateway.api.prefix import Prefixes
from gateway.app import Gateway
from gateway.core.messages import ScaleAdvised
from gateway.settings import load_settings
from tests.support.recalling import NOTHING, Prompted


def gateway(**overrides: object) -> Gateway:
    """A gateway that serves nothing; `overrides` are dotted settings with `__` for the dot."""
    values = {name.replace("__", "."): value for name, value in overrides.items()}
    values["replicas"] = ["http://127.0.0.1:9"]
    return Gateway(load_settings(config=None, environ={}, overrides=values))


def test_advice_is_published_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """An autoscaler reads the metric; an operator asks the log why there are more machines."""
    wired = gateway()
    prompted = Prompted(wired.scheduler)
    wired.dispatcher.scheduler = prompted  # type: ignore[assignment]  # all that is used of it
    prompted.next = [ScaleAdvised(frozenset({"a", "b"}), 3, "r7")]
    with caplog.at_level(logging.INFO, "fairgate.scaling"):
        wired.dispatcher.tell(NOTHING)
        wired.dispatcher.tell(NOTHING)
    assert caplog.messages == ["advised replicas for a, b: 3 without r7"]
    text = wired.metrics.text().decode()
    assert 'fairgate_scale_advised_replicas{model="a"} 3.0' in text
    assert 'fairgate_scale_advised_replicas{model="b"} 3.0' in text


@pytest.mark.parametrize(
    ("scheduling", "is_hashed"),
    [
        ({}, True),
        ({"affinity": {"prefix": 0}}, False),
        ({"affinity": {"prefix": 0}, "within_user": "prefix"}, True),
    ],
)
def test_prompts_are_hashed_only_where_something_is_decided_by_it(
    scheduling: dict[str, object], is_hashed: bool
) -> None:
    """Hashing costs every request; without it conversations lose their warm replica."""
    wired = gateway(scheduling=scheduling)
    assert isinstance(wired.relay._prefixes, Prefixes) is is_hashed
