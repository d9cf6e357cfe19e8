"""A batch as the real `openai` client makes it, from the upload to the last answer."""

import asyncio
import json
from typing import Any, Final

from openai import AsyncOpenAI

CHAT: Final = "/v1/chat/completions"
OVER = frozenset({"completed", "failed", "expired", "cancelled"})
LOOK_S = 0.2


def line(number: int, body: dict[str, Any]) -> bytes:
    """One line of input, whose `custom_id` is c and the number."""
    text = {"custom_id": f"c{number}", "method": "POST", "url": CHAT, "body": body}
    return json.dumps(text).encode() + b"\n"


async def answered(client: AsyncOpenAI, data: bytes, within_s: float) -> dict[str, dict[str, Any]]:
    """What each line of `data` got, by `custom_id`; all of them succeeded. Raises TimeoutError."""
    file = await client.files.create(file=("in.jsonl", data), purpose="batch")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h"
    )
    async with asyncio.timeout(within_s):
        while batch.status not in OVER:
            await asyncio.sleep(LOOK_S)
            batch = await client.batches.retrieve(batch.id)
    assert (batch.status, batch.error_file_id) == ("completed", None)
    assert batch.output_file_id is not None
    text = (await client.files.content(batch.output_file_id)).text
    answers = [json.loads(each) for each in text.splitlines()]
    found = {each["custom_id"]: each["response"] for each in answers}
    assert len(found) == len(answers) == len(data.splitlines())
    assert {each["status_code"] for each in found.values()} == {200}
    return found
