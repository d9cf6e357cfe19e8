"""A batch on a real vLLM, with the real `openai` client: answers as direct requests have them."""

from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.e2e.processes import serving
from tests.e2e.vllm.conftest import Say
from tests.e2e.vllm.engines import MODEL
from tests.support.batch_client import answered, line
from tests.support.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

LINES = 60
END_S_MAX = 300.0


def asked(number: int) -> dict[str, Any]:
    """A chat whose answer is the same whenever it is asked for."""
    content = f"Say the number {number}."
    message = {"role": "user", "content": content}
    return {"model": MODEL, "messages": [message], "max_tokens": 6, "temperature": 0}


async def test_a_batch_answers_as_the_engine_does_line_by_line(
    engine: str, tmp_path: Path, say: Say
) -> None:
    """Whoever moves nightly work into a batch gets the same answers."""
    batches = {"files": str(tmp_path / "files"), "store": f"sqlite:///{tmp_path}/batches.db"}
    data = b"".join(line(number, asked(number)) for number in range(LINES))
    with serving(tmp_path, free_port(), [engine], batches=batches) as url:
        async with (
            AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client,
            AsyncOpenAI(base_url=f"{engine}/v1", api_key="any") as direct,
        ):
            answers = await answered(client, data, END_S_MAX)
            same = 0
            for number in range(LINES):
                body = answers[f"c{number}"]["body"]
                told = await direct.chat.completions.create(**asked(number))
                assert body["usage"]["prompt_tokens"] == told.usage.prompt_tokens
                same += body["choices"][0]["message"]["content"] == told.choices[0].message.content
            say(f"{LINES} lines, {same} of them word for word as asked directly")
            assert same == LINES
