"""A probe finds its replica, reports on it and keeps its pace; the engine is a scripted one."""

import httpx
import pytest

from gateway.core.messages import ReplicaFound, ReplicaReported
from tests.support.probing import (
    HUNG,
    SERVER_INFO,
    SGLANG_CARD,
    TINY,
    VLLM_METRICS,
    Engine,
    Watch,
    cards,
    json,
    kinds,
    text,
)
from tests.support.shared import shared_path

# --- found and reported ---------------------------------------------------------------------------


async def test_first_contact_tells_the_models_before_the_report() -> None:
    """A report on a replica nobody heard of yet would be dropped by the scheduler."""
    watch = Watch(Engine(), weight=2.0)
    status = await watch.round()
    found, reported = watch.news()
    assert found == ReplicaFound(
        replica="r1", models=frozenset({"tiny"}), slots=None, weight=2.0, context_tokens=1024
    )
    assert isinstance(reported, ReplicaReported)
    assert (reported.replica, reported.report.running, reported.report.waiting) == ("r1", 4, 8)
    assert status.up
    assert status.engine == "vllm"
    assert status.models == {"tiny": 1024}
    assert status.cards == {"tiny": TINY}
    assert (status.last_success_at, status.last_error, status.misses) == (101.0, None, 0)
    assert "vllm:kv_cache_usage_perc" in status.missing


async def test_a_report_carries_the_instant_it_was_asked_for() -> None:
    """Compared with the wrong instant's ledger, own requests would look like foreign load."""
    engine = Engine()
    watch = Watch(engine)

    def slow() -> httpx.Response:
        watch.now += 0.25
        return httpx.Response(200, text=VLLM_METRICS)

    engine.answers["/metrics"] = slow
    await watch.round()
    reported = watch.news()[-1]
    assert isinstance(reported, ReplicaReported)
    assert (reported.sent_at, reported.round_trip_s) == (101.0, 0.25)


async def test_models_are_asked_again_only_when_due() -> None:
    """Two questions a second to each of 100 replicas would be twice the load for no news."""
    engine = Engine()
    watch = Watch(engine, models_every_s=10.0)
    await watch.run(rounds=12)
    assert engine.asked.count("/metrics") == 12
    assert engine.asked.count("/v1/models") == 2
    assert kinds(watch.told).count("ReplicaFound") == 2


async def test_an_adapter_loaded_later_is_offered_at_the_next_refresh() -> None:
    """A LoRA adapter loaded at run time would be answered 404 until the gateway restarts."""
    engine = Engine()
    watch = Watch(engine, models_every_s=3.0)
    await watch.round()
    adapter = {"id": "tiny-de", "object": "model", "parent": "tiny", "root": "/adapters/de"}
    engine.answers["/v1/models"] = cards(TINY, adapter)
    for _ in range(3):
        status = await watch.round()
    assert status.models == {"tiny": 1024, "tiny-de": 1024}
    assert status.cards["tiny-de"] == adapter
    found = [event for event in watch.told if isinstance(event, ReplicaFound)]
    assert found[-1].models == {"tiny", "tiny-de"}


async def test_a_failed_refresh_of_the_models_keeps_the_known_ones() -> None:
    """A busy engine that misses one question must not lose its models."""
    engine = Engine()
    watch = Watch(engine, models_every_s=1.0)
    await watch.round()
    watch.news()
    for broken in (HUNG, text("oops"), cards(), json([1]), json({"data": [7, {"id": ""}]})):
        engine.answers["/v1/models"] = broken
        status = await watch.round()
        assert status.up
        assert status.models == {"tiny": 1024}
        assert status.last_error is not None
        assert status.last_error.startswith("GET /v1/models: ")
    assert kinds(watch.news()) == ["ReplicaReported"] * 5
    engine.answers["/v1/models"] = cards(TINY)
    assert (await watch.round()).last_error is None


async def test_configured_models_win_and_discovery_only_confirms() -> None:
    """An operator who names the models must not see others offered, nor miss a typing error."""
    watch = Watch(Engine(), models=frozenset({"tiny", "tinny"}))
    status = await watch.round()
    assert watch.news()[0] == ReplicaFound(replica="r1", models=frozenset({"tiny", "tinny"}))
    assert status.models == {"tiny": 1024, "tinny": None}
    assert status.detail == "the engine does not list tinny"


@pytest.mark.parametrize(
    ("listed", "context_tokens"),
    [
        ((TINY, {**TINY, "id": "long", "max_model_len": 8192}), 8192),
        ((TINY, {"id": "lora", "parent": "tiny"}), 1024),
        ((TINY, {"id": "unsaid"}), None),
        (({"id": "unsaid"},), None),
    ],
)
async def test_the_longest_context_is_told_where_all_models_say_theirs(
    listed: tuple[object, ...], context_tokens: int | None
) -> None:
    """A prompt that one of the models can hold must not be refused for another's length."""
    watch = Watch(Engine({"/metrics": text(VLLM_METRICS), "/v1/models": cards(*listed)}))
    await watch.round()
    found = watch.news()[0]
    assert isinstance(found, ReplicaFound)
    assert found.context_tokens == context_tokens


async def test_a_context_that_changes_is_told_again() -> None:
    """An engine restarted with a shorter one would be sent what it can only refuse."""
    engine = Engine()
    watch = Watch(engine, models_every_s=1.0)
    await watch.round()
    engine.answers["/v1/models"] = cards({**TINY, "max_model_len": 512})
    await watch.round()
    told = [event.context_tokens for event in watch.news() if isinstance(event, ReplicaFound)]
    assert told == [1024, 512]


async def test_configured_models_need_no_listing() -> None:
    """An engine without /v1/models is usable when the operator says what it serves."""
    engine = Engine()
    del engine.answers["/v1/models"]
    watch = Watch(engine, models=frozenset({"tiny"}))
    status = await watch.round()
    assert kinds(watch.news()) == ["ReplicaFound", "ReplicaReported"]
    assert status.up
    assert status.last_error == "GET /v1/models: HTTP 404"


@pytest.mark.parametrize("code", [401, 403])
async def test_a_replica_that_refuses_our_key_is_not_found(code: int) -> None:
    """vLLM shows /metrics to everybody: each client would get a 401 that is the operator's."""
    engine = Engine()
    engine.answers["/v1/models"] = text('{"error":"Unauthorized"}', code)
    watch = Watch(engine, models=frozenset({"tiny"}))
    for _ in range(5):
        status = await watch.round()
    assert watch.news() == []
    assert not status.up
    assert status.last_error == f"GET /v1/models: HTTP {code}"


async def test_a_replica_whose_models_are_unknown_is_not_found_yet() -> None:
    """Without a model name nothing can be routed there."""
    engine = Engine()
    engine.answers["/v1/models"] = HUNG
    watch = Watch(engine)
    status = await watch.round()
    assert (watch.news(), status.up) == ([], False)
    engine.answers["/v1/models"] = cards(TINY)
    assert (await watch.round()).up
    assert kinds(watch.news()) == ["ReplicaFound", "ReplicaReported"]


async def test_a_recorded_vllm_is_read_from_end_to_end() -> None:
    """What a real server writes must pass the whole way, not only the parser."""
    engine = Engine()
    folder = shared_path("fixtures")
    metrics = (folder / "metrics_dp2.txt").read_bytes()
    models = (folder / "v1_models.body.txt").read_bytes()
    engine.answers["/metrics"] = lambda: httpx.Response(200, content=metrics)
    engine.answers["/v1/models"] = lambda: httpx.Response(200, content=models)
    watch = Watch(engine, max_num_seqs=4)
    status = await watch.round()
    assert (status.engine, status.engines, status.models) == ("vllm", 2, {"tiny": 1024})
    assert status.missing == ()
    assert status.cards["tiny"]["owned_by"] == "vllm"


# --- slots and facts ------------------------------------------------------------------------------


async def test_configured_slots_count_for_each_data_parallel_engine() -> None:
    """Half of a data-parallel replica would stay idle."""
    engine = Engine()
    engine.answers["/metrics"] = text(VLLM_METRICS + VLLM_METRICS.replace('"0"', '"1"'))
    watch = Watch(engine, max_num_seqs=128)
    await watch.round()
    found = watch.news()[0]
    assert isinstance(found, ReplicaFound)
    assert found.slots == 256


async def test_a_second_engine_that_shows_up_late_is_told_at_once() -> None:
    """Until the next refresh of the models half of the slots would stay idle."""
    engine = Engine()
    watch = Watch(engine, max_num_seqs=128)
    await watch.round()
    watch.news()
    engine.answers["/metrics"] = text(VLLM_METRICS + VLLM_METRICS.replace('"0"', '"1"'))
    await watch.round()
    found, _ = watch.news()
    assert isinstance(found, ReplicaFound)
    assert found.slots == 256


async def test_sglang_is_asked_once_for_its_slots() -> None:
    """Its running limit is known to itself: learning it under load would take minutes."""
    engine = Engine(
        {
            "/metrics": text("sglang:num_running_reqs 1.0\nsglang:num_queue_reqs 0.0\n"),
            "/v1/models": cards(SGLANG_CARD),
            "/server_info": json(SERVER_INFO),
        }
    )
    watch = Watch(engine, models_every_s=2.0)
    for _ in range(6):
        status = await watch.round()
    assert engine.asked.count("/server_info") == 1
    assert status.slots == 52
    found, reported = watch.told[:2]
    assert isinstance(found, ReplicaFound)
    assert isinstance(reported, ReplicaReported)
    assert (found.slots, reported.report.slots) == (52, 52)


async def test_an_older_sglang_is_asked_on_its_older_route() -> None:
    """/server_info is newer than many a running server."""
    engine = Engine(
        {
            "/metrics": text("sglang:num_running_reqs 1.0\n"),
            "/v1/models": cards(SGLANG_CARD),
            "/get_server_info": json({"max_running_requests": 64}),
        }
    )
    assert (await Watch(engine).round()).slots == 64


async def test_sglang_without_metrics_is_up_and_says_what_is_lacking() -> None:
    """Metrics are off by default there: the replica serves, only its foreign load is unseen."""
    engine = Engine({"/v1/models": cards(SGLANG_CARD), "/server_info": json(SERVER_INFO)})
    watch = Watch(engine)
    for _ in range(4):
        status = await watch.round()
    assert kinds(watch.told) == ["ReplicaFound"]
    assert status.up
    assert (status.engine, status.slots) == ("sglang", 52)
    assert status.detail is not None
    assert "--enable-metrics" in status.detail
    assert status.last_error == "GET /metrics: HTTP 404"


async def test_configured_slots_win_over_what_the_engine_says() -> None:
    """An operator who limits an engine has a reason."""
    engine = Engine({"/v1/models": cards(SGLANG_CARD), "/server_info": json(SERVER_INFO)})
    assert (await Watch(engine, max_num_seqs=8).round()).slots == 8


async def test_a_llamacpp_tells_its_slots_and_context() -> None:
    """Its model card knows only the context the model was trained with."""
    engine = Engine(
        {
            "/metrics": text("llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n"),
            "/v1/models": cards({"id": "m.gguf", "owned_by": "llamacpp", "meta": None}),
            "/props": json({"total_slots": 4, "default_generation_settings": {"n_ctx": 2048}}),
        }
    )
    watch = Watch(engine)
    status = await watch.round()
    assert (status.slots, status.models) == (4, {"m.gguf": 2048})
    found = watch.news()[0]
    assert isinstance(found, ReplicaFound)
    assert found.context_tokens == 2048


async def test_an_older_tgi_names_its_model_on_its_information_route() -> None:
    """TGI had no /v1/models before version 2: it would never be found."""
    engine = Engine(
        {
            "/metrics": text("tgi_queue_size 0\ntgi_batch_current_size 1\n"),
            "/info": json({"model_id": "org/m", "max_total_tokens": 2048, "max_batch_size": None}),
        }
    )
    status = await Watch(engine).round()
    assert status.up
    assert (status.engine, status.slots, status.models) == ("tgi", None, {"org/m": 2048})


async def test_a_tgi_that_served_nothing_yet_is_up_without_a_report() -> None:
    """Its metrics page is empty until the first request: unknown, and no reason to keep it out."""
    engine = Engine({"/metrics": text(""), "/v1/models": cards({"id": "m", "owned_by": "m"})})
    watch = Watch(engine, speaks="tgi")
    status = await watch.round()
    assert kinds(watch.told) == ["ReplicaFound"]
    assert status.up


async def test_the_wrong_configured_engine_is_named() -> None:
    """Otherwise the operator sees only that every metric is missing."""
    status = await Watch(Engine(), speaks="sglang").round()
    assert status.last_error == "GET /metrics: metrics of vllm"


# --- pace -----------------------------------------------------------------------------------------


async def test_it_probes_once_an_interval_and_four_times_as_often_when_asked_to() -> None:
    """Slots learnt after minutes mean minutes of a half-used engine."""
    fast = [False, True, True, False]
    watch = Watch(Engine(), interval_s=2.0, wants_fast=lambda: fast.pop(0))
    await watch.run(rounds=4)
    assert watch.pauses == [2.0, 0.5, 0.5, 2.0]


async def test_the_pause_varies_so_that_probes_do_not_march_in_step() -> None:
    """A hundred replicas scraped in the same millisecond would stall every stream once a second."""
    drawn = [0.0, 1.0, 0.5]
    watch = Watch(Engine(), jitter=lambda: drawn.pop(0))
    await watch.run(rounds=3)
    assert watch.pauses == pytest.approx([0.9, 1.1, 1.0])


async def test_a_slow_answer_shortens_the_pause_but_never_to_nothing() -> None:
    """A hung engine must be lost within seconds, and not be hammered meanwhile."""
    engine = Engine()
    watch = Watch(engine)
    takes = [0.5, 3.0]

    def slow() -> httpx.Response:
        watch.now += takes.pop(0)
        return httpx.Response(200, text=VLLM_METRICS)

    engine.answers["/metrics"] = slow
    await watch.run(rounds=2)
    assert watch.pauses == [0.5, 0.25]


async def test_a_cancelled_probe_closes_its_connection() -> None:
    """Each replica removed at run time would leave a socket behind."""
    engine = Engine()
    await Watch(engine).run(rounds=1)
    assert engine.closed


# --- what nobody thought of -----------------------------------------------------------------------


def socketless() -> httpx.Response:
    """What httpcore raises over a connection that broke as soon as it was made."""
    raise AttributeError("'NoneType' object has no attribute 'getpeername'")


async def test_a_connection_that_breaks_as_soon_as_it_is_made_is_no_answer() -> None:
    """An engine that was restarted at the wrong millisecond took the whole gateway with it."""
    engine = Engine()
    watch = Watch(engine)
    await watch.round()
    engine.answers["/metrics"] = engine.answers["/v1/models"] = socketless
    status = await watch.round()
    assert status.misses == 1
    assert status.last_error is not None
    assert status.last_error.endswith("AttributeError")


async def test_what_nobody_thought_of_costs_one_round_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One answer that a parser chokes on would end the service of all other replicas."""
    engine = Engine()
    watch = Watch(engine)
    faults = [True, False]

    def odd() -> httpx.Response:
        if faults.pop(0):
            raise RuntimeError("never seen")
        return httpx.Response(200, text=VLLM_METRICS)

    engine.answers["/metrics"] = odd
    await watch.run(rounds=2)
    assert kinds(watch.told)[-1] == "ReplicaReported"
    assert "asking it how it is failed" in caplog.text
