"""The states of a batch: which follow on which, and what is asked for in vain."""

from dataclasses import replace

import pytest

from gateway.batch.lines import Fault
from gateway.batch.record import (
    Batch,
    BatchStateError,
    all_run,
    broken_off,
    cancelled,
    ended,
    expired,
    invalid,
    validated,
)
from tests.support.batches import ALICE, CHAT

NEW = Batch(
    id="batch_1", owner=ALICE, key_id="k", tier="background", endpoint=CHAT,
    input_file_id="file-1", completion_window="24h", created_at=0.0, expires_at=100.0,
)  # fmt: skip
FAULT = Fault(code="x", message="x")
RUNNING = validated(NEW, 1.0, total=3, model="m")


def test_a_batch_goes_from_its_check_to_its_end() -> None:
    """The usual way, with the instants that clients show."""
    done = ended(all_run(RUNNING, 2.0), 3.0, output_file_id="file-2")
    assert (RUNNING.status, RUNNING.in_progress_at, RUNNING.total) == ("in_progress", 1.0, 3)
    assert (done.status, done.finalizing_at, done.completed_at) == ("completed", 2.0, 3.0)
    assert (done.output_file_id, done.error_file_id, done.is_open) == ("file-2", None, False)


def test_a_wrong_file_fails_its_batch() -> None:
    """Nothing of it runs."""
    failed = invalid(NEW, 1.0, (FAULT,))
    assert (failed.status, failed.failed_at, failed.errors) == ("failed", 1.0, (FAULT,))


@pytest.mark.parametrize("batch", [NEW, RUNNING, all_run(RUNNING, 2.0)])
def test_an_open_batch_can_be_cancelled_at_any_stage(batch: Batch) -> None:
    """A user who cancels must be sure that it ends."""
    stopping = cancelled(batch, 5.0)
    assert (stopping.status, stopping.cancelling_at) == ("cancelling", 5.0)
    assert cancelled(stopping, 6.0) is stopping, "twice is once"
    done = ended(stopping, 7.0)
    assert (done.status, done.cancelled_at) == ("cancelled", 7.0)


def test_a_check_that_ends_after_the_cancelling_does_not_start_the_batch() -> None:
    """The user was told that it is being cancelled."""
    stopping = cancelled(NEW, 5.0)
    assert validated(stopping, 6.0, total=3, model=None).status == "cancelling"
    assert invalid(stopping, 6.0, (FAULT,)).status == "cancelled"


def test_what_has_ended_stays_as_it_is() -> None:
    """A batch with outputs must not lose them to a late request."""
    done = ended(all_run(RUNNING, 2.0), 3.0)
    for change in (cancelled, expired):
        with pytest.raises(BatchStateError):
            change(done, 9.0)
    with pytest.raises(BatchStateError):
        broken_off(done, 9.0, FAULT)


def test_a_late_batch_keeps_what_it_has() -> None:
    """What was paid for is put out; the status says that it is not all."""
    late = expired(RUNNING, 100.0)
    assert (late.status, late.ends_as) == ("finalizing", "expired")
    assert ended(late, 101.0).expired_at == 101.0
    assert expired(NEW, 100.0).status == "expired", "nothing of it was run"
    with pytest.raises(BatchStateError):
        expired(all_run(RUNNING, 2.0), 100.0)


def test_a_batch_whose_key_is_gone_fails_with_what_it_has() -> None:
    """An operator who revokes a key ends its batches."""
    broken = broken_off(RUNNING, 5.0, FAULT)
    done = ended(broken, 6.0, output_file_id="file-2")
    assert (done.status, done.errors, done.output_file_id) == ("failed", (FAULT,), "file-2")


def test_counts_add_up() -> None:
    """Parts of a batch are counted apart."""
    one = replace(RUNNING.counts, completed=2, failed=1)
    assert one.plus(one).completed == 4
    assert one.plus(one).failed == 2
