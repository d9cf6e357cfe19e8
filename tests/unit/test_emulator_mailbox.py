"""What one request of the emulator waits on."""

import asyncio

import pytest

from gateway.emulator.mailbox import ClientGone, Mailbox, Silence
from gateway.emulator.refusals import Refusal


async def test_what_came_since_the_last_take_is_handed_over_together() -> None:
    """Memory would grow with the slowness of a reader."""
    mailbox = Mailbox()
    mailbox.put(0, 1, ended=False)
    mailbox.put(1, 1, ended=False)
    mailbox.put(0, 1, ended=True)
    assert await mailbox.take() == [(0, 2, True), (1, 1, False)]


async def test_a_take_waits_for_the_next_step() -> None:
    """A stream would spin, or end early."""
    mailbox = Mailbox()
    async with asyncio.TaskGroup() as tasks:
        taken = tasks.create_task(mailbox.take())
        await asyncio.sleep(0)
        assert not taken.done()
        mailbox.put(0, 1, ended=False)
    assert taken.result() == [(0, 1, False)]


async def test_silence_and_departure_are_told_apart() -> None:
    """A keep-alive comment would be sent to nobody, or a stream be ended for being slow."""
    mailbox = Mailbox()
    with pytest.raises(Silence):
        await mailbox.take(0.01)
    await mailbox.wait_gone(0.01)
    mailbox.put(0, 1, ended=False)
    mailbox.close()
    with pytest.raises(ClientGone):
        await mailbox.take(0.01)
    with pytest.raises(ClientGone):
        await mailbox.wait_gone()


async def test_a_whole_answer_wakes_its_request_once() -> None:
    """A plain request would cost the loop a turn for each token, and streams would wait for it."""
    mailbox = Mailbox()
    async with asyncio.TaskGroup() as tasks:
        taken = tasks.create_task(mailbox.take_whole(2))
        await asyncio.sleep(0)
        mailbox.put(0, 3, ended=False)
        mailbox.put(1, 1, ended=True)
        assert mailbox._waiter is not None
        assert not mailbox._waiter.done()
        mailbox.put(0, 2, ended=True)
    assert taken.result() == [5, 1]


@pytest.mark.parametrize("ends", [False, True])
async def test_a_loss_before_the_end_is_told_and_one_after_it_is_not(*, ends: bool) -> None:
    """A half of an answer would be sent as a whole one, or a whole one be lost."""
    mailbox = Mailbox()
    mailbox.put(0, 3, ended=ends)
    mailbox.fail(Refusal(500, b"gone"))
    if ends:
        assert await mailbox.take_whole(1) == [3]
    else:
        with pytest.raises(Refusal):
            await mailbox.take_whole(1)
