"""The faults that are planted in what makes way for others, and what must notice each of them."""

from tests.support.catching import Mutation, unit

M = Mutation

YIELDING = (
    M("equals are ended for one another", "gate.py",
      "for rank in range(above + 1, len(policy.tiers))",
      "for rank in range(above, len(policy.tiers))",
      unit("preemption", "test_nobody_makes_way_for_a_tier_that_is_not_above", tier=1)),
    M("what streams is ended", "ledger.py",
      "(self.waiting.request.streams or self.was_favoured)", "self.was_favoured",
      unit("preemption", "test_what_streams_is_never_ended")),
    M("what waits in the engine is ended for its slot", "preemption.py",
      "        if waiting <= 0:\n", "        if waiting <= 9:\n",
      unit("preemption", "test_what_waits_inside_the_engine_is_not_ended_for_nothing")),
    M("a line that waits for a slot is ended for it", "preemption.py",
      "ran = taken < left + newcomer.slots", "ran = True",
      unit("preemption", "test_the_engine_goes_by_tier_and_lines_wait_behind_all_people")),
    M("what has just begun is thought to wait", "preemption.py",
      "ran = taken < left + newcomer.slots", "ran = grant.is_started",
      unit("preemption", "test_who_has_just_begun_runs_all_the_same")),
    M("what makes way for people keeps them out", "gate.py",
      "waiting = max(0, waiting - yielding)", "waiting = max(0, waiting)",
      unit("preemption", "test_what_waits_behind_them_keeps_nobody_out")),
    M("it makes way in engines that serve as they come", "gate.py",
      "if not lower or not replica.orders_by_tier:\n            return 0\n",
      "if not lower:\n            return 0\n",
      unit("preemption", "test_an_engine_that_serves_as_they_come_is_full_for_everybody")),
    M("the KV of what makes way is not to be had", "gate.py",
      "kv_tokens -= self.yielding_kv(replica, waiting.request.tier)", "kv_tokens -= 0.0",
      unit("preemption", "test_kv_makes_way_as_slots_do")),
    M("what is owed finds free what makes way for others", "gate.py",
      "if rank != tier and waiting.kind.decodes and", "if rank < tier and waiting.kind.decodes and",
      unit("preemption", "test_a_floor_does_not_open_slots_that_make_way_for_others")),
    M("for want of KV nothing is ended", "preemption.py",
      "(taken > left or kv_taken > kv_left)", "taken > left",
      unit("preemption", "test_kv_makes_way_as_slots_do")),
    M("lines of a batch wait without end", "window.py",
      "int(running * WAITING_SHARE) - waiting", "int(running * WAITING_SHARE)",
      unit("window", "test_a_window_opens_with_what_runs")),
)  # fmt: skip
