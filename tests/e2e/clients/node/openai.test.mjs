// The `openai` package for Node: only its base URL and key say that a gateway is there.
// SITE, NARROW, ENGINE: where the quick gateway, the narrow one and the quick one's engine listen.
import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import { beforeEach, test } from "node:test";
import OpenAI, { toFile } from "openai";

const { SITE, NARROW, ENGINE, KEY, MODEL } = process.env;
const messages = [{ role: "user", content: "How is the weather?" }];
const parameters = { type: "object", properties: { city: { type: "string" } } };
const tools = [{ type: "function", function: { name: "weather", parameters } }];
const stream = true;
const client = new OpenAI({ baseURL: `${SITE}/v1`, apiKey: KEY });

const fault = async (...faults) =>
  fetch(`${ENGINE}/_fault`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ clear: true, inject: faults }),
  });
const gathered = async (stream) => {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
};
const idle = async () => {
  for (let left = 250; left > 0; left--) {
    if ((await (await fetch(`${ENGINE}/load`)).json()).server_load === 0) return;
    await sleep(20);
  }
  assert.fail("the engine still works for somebody who left");
};
const filled = async () => {
  const body = JSON.stringify({ model: MODEL, prompt: "x", max_tokens: 300 });
  const headers = { "content-type": "application/json", authorization: `Bearer ${KEY}` };
  const ask = () => fetch(`${NARROW}/v1/completions`, { method: "POST", headers, body });
  const ends = Promise.all([ask().then((a) => a.text()), ask().then((a) => a.text())]);
  for (let left = 250; left > 0; left--) {
    const { granted, waiting } = await (await fetch(`${NARROW}/readyz`)).json();
    if (granted === 1 && waiting === 1) return { ends };
    await sleep(20);
  }
  assert.fail("the site did not fill up");
};

beforeEach(() => fault());

test("a chat says the same plain and streamed", async () => {
  const asked = { model: MODEL, messages, max_tokens: 12, temperature: 0 };
  const plain = await client.chat.completions.create(asked);
  const stream_options = { include_usage: true };
  const chunks = await gathered(
    await client.chat.completions.create({ ...asked, stream, stream_options }),
  );
  const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
  assert.equal(text, plain.choices[0].message.content);
  assert.equal(chunks.at(-1).usage.completion_tokens, 12);
  assert.equal(chunks.at(-1).usage.prompt_tokens, plain.usage.prompt_tokens);
  assert.ok(plain._request_id);
});

test("a stream shows no usage that was not asked for", async () => {
  const asked = { model: MODEL, messages, max_tokens: 4, stream };
  const chunks = await gathered(await client.chat.completions.create(asked));
  assert.ok(chunks.every((chunk) => chunk.choices.length === 1 && chunk.usage == null));
});

test("a tool is called, plain and streamed", async () => {
  const asked = { model: MODEL, messages, tools, tool_choice: "required", max_tokens: 60 };
  const plain = await client.chat.completions.create(asked);
  const streamed = await client.chat.completions.stream(asked).finalChatCompletion();
  for (const answer of [plain, streamed]) {
    const [call] = answer.choices[0].message.tool_calls;
    assert.equal(call.function.name, "weather");
    assert.ok("city" in JSON.parse(call.function.arguments));
  }
});

test("a response is made, streamed, fetched and gone on from", async () => {
  const asked = { model: MODEL, input: "Say something.", max_output_tokens: 8, temperature: 0 };
  const made = await client.responses.create(asked);
  const events = await gathered(await client.responses.create({ ...asked, stream }));
  const fetched = await client.responses.retrieve(made.id);
  const following = await client.responses.create({ ...asked, previous_response_id: made.id });
  const deltas = events.filter((event) => event.type === "response.output_text.delta");
  assert.equal(events[0].type, "response.created");
  assert.equal(deltas.map((event) => event.delta).join(""), made.output_text);
  assert.equal(fetched.output_text, made.output_text);
  assert.ok(following.usage.input_tokens > made.usage.input_tokens);
});

test("embeddings, audio and models", async () => {
  const vectors = await client.embeddings.create({ model: MODEL, input: ["a", "b"] });
  const file = await toFile(Buffer.alloc(50_000), "speech.wav");
  const heard = await client.audio.transcriptions.create({ model: MODEL, file });
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  assert.equal(vectors.data.length, 2);
  // The package asks for base64 and decodes it by itself.
  assert.equal(typeof vectors.data[0].embedding[0], "number");
  assert.ok(heard.text);
  assert.ok(names.includes(MODEL));
});

test("errors are the exceptions that applications catch", async () => {
  const chat = (who, more) => who.chat.completions.create({ model: MODEL, messages, ...more });
  const stranger = new OpenAI({ baseURL: `${SITE}/v1`, apiKey: "fg-wrong" });
  await assert.rejects(chat(client, { model: "nope" }), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, "model_not_found");
    return Boolean(error.requestID);
  });
  await assert.rejects(chat(client, { max_tokens: 1e7 }), OpenAI.BadRequestError);
  await assert.rejects(chat(client, { tools }), OpenAI.BadRequestError);
  await assert.rejects(chat(stranger), OpenAI.AuthenticationError);
  await assert.rejects(client.responses.retrieve("resp_0123456789"), OpenAI.NotFoundError);
});

const breaking = {
  chat: () => client.chat.completions.create({ model: MODEL, messages, max_tokens: 40, stream }),
  response: () =>
    client.responses.create({ model: MODEL, input: "x", max_output_tokens: 40, stream }),
};
for (const [route, ask] of Object.entries(breaking)) {
  for (const kind of ["die-midstream:7", "close-midstream:7"]) {
    test(`a stream that breaks raises: ${route}, ${kind}`, async () => {
      await fault(kind);
      const seen = [];
      await assert.rejects(async () => {
        for await (const event of await ask()) seen.push(event);
      }, OpenAI.APIError);
      assert.ok(seen.length >= 3);
    });
  }
}

test("an engine's own error raises in a chat, and is the last event of a response", async () => {
  await fault("error-midstream:7");
  await assert.rejects(async () => gathered(await breaking.chat()), OpenAI.APIError);
  const events = await gathered(await breaking.response());
  assert.equal(events.at(-1).type, "error");
});

test("an engine that fails once is tried again by the client", async () => {
  await fault("error-500*1");
  const answer = await client.chat.completions.create({ model: MODEL, messages, max_tokens: 2 });
  assert.ok(answer.choices.length);
});

for (const streams of [false, true]) {
  test(`a client that times out leaves nothing behind: stream ${streams}`, async () => {
    await fault("stall:0");
    const hasty = new OpenAI({
      baseURL: `${SITE}/v1`,
      apiKey: KEY,
      timeout: 500,
      maxRetries: 1,
    });
    const asked = { model: MODEL, messages, max_tokens: 9, stream: streams };
    await assert.rejects(hasty.chat.completions.create(asked), OpenAI.APIConnectionTimeoutError);
    await idle();
  });
}

test("a stream that the application aborts leaves nothing behind", async () => {
  const asked = { model: MODEL, messages, max_tokens: 4000, stream };
  for await (const _ of await client.chat.completions.create(asked)) break;
  await idle();
});

test("who sends too much is told when to come back, and the client waits so long", async () => {
  const proud = new OpenAI({ baseURL: `${NARROW}/v1`, apiKey: KEY, maxRetries: 0 });
  const patient = new OpenAI({ baseURL: `${NARROW}/v1`, apiKey: KEY, maxRetries: 2 });
  const asked = { model: MODEL, messages, max_tokens: 2 };
  const { ends } = await filled();
  await assert.rejects(proud.chat.completions.create(asked), (error) => {
    assert.ok(error instanceof OpenAI.RateLimitError);
    assert.equal(error.code, "rate_limit_exceeded");
    return Number(error.headers.get("retry-after")) >= 1;
  });
  const began = performance.now();
  const { data, response } = await patient.chat.completions.create(asked).withResponse();
  assert.ok(performance.now() - began >= 1000);
  assert.equal(response.status, 200);
  assert.ok(data.choices.length);
  await ends;
});
