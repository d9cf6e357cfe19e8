"""A batch on a real vLLM, with the real `openai` client: answers as direct requests have them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.e2e.processes import serving
from tests.e2e.vllm.conftest import Say
from tests.e2e.vllm.engines import MODEL
from tests.support.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

LINES = 60
END_S_MAX = 300.0


def asked(number: int) -> dict[str, Any]:
    """A chat whose answer is the same whenever it is asked for."""
    content = f"Say the number {number}."
    message = {"role": "user", "content": content}
    return {"model": MODEL, "messages": [message], "max_tokens": 6, "temperature": 0}


def line(number: int) -> bytes:
    """The same, as a line."""
    written = {"custom_id": f"c{number}", "method": "POST", "url": "/v1/chat/completions"}
    return json.dumps({**written, "body": asked(number)}).encode() + b"\n"


async def test_a_batch_answers_as_the_engine_does_line_by_line(
    engine: str, tmp_path: Path, say: Say
) -> None:
    """Whoever moves nightly work into a batch gets the same answers."""
    batches = {"files": str(tmp_path / "files"), "store": f"sqlite:///{tmp_path}/batches.db"}
    with serving(tmp_path, free_port(), [engine], batches=batches) as url:
        async with (
            AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client,
            AsyncOpenAI(base_url=f"{engine}/v1", api_key="any") as direct,
        ):
            data = b"".join(line(number) for number in range(LINES))
            file = await client.files.create(file=("in.jsonl", data), purpose="batch")
            batch = await client.batches.create(
                input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
            )
            async with asyncio.timeout(END_S_MAX):
                while batch.status not in ("completed", "failed", "expired"):
                    await asyncio.sleep(0.2)
                    batch = await client.batches.retrieve(batch.id)
            assert (batch.status, batch.error_file_id) == ("completed", None)
            assert batch.output_file_id is not None
            text = (await client.files.content(batch.output_file_id)).text
            answers = {each["custom_id"]: each for each in map(json.loads, text.splitlines())}
            assert len(answers) == len(text.splitlines()) == LINES
            same = 0
            for number in range(LINES):
                body = answers[f"c{number}"]["response"]["body"]
                told = await direct.chat.completions.create(**asked(number))
                assert body["usage"]["prompt_tokens"] == told.usage.prompt_tokens
                same += body["choices"][0]["message"]["content"] == told.choices[0].message.content
            say(f"{LINES} lines, {same} of them word for word as asked directly")
            assert same == LINES
