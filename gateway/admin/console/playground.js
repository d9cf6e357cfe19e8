// One chat request, asked as a client would: which tier it got, how long it waited, where it ran.
import { useEffect, useRef, useState } from "preact/hooks";
import { all, ask, chat, events } from "./api.js";
import { Facts, Failure, Head, html } from "./ui.js";

const KEY_LIVES_S = 3600;
const TOKENS = 256;
const WAYS = [["none", "Without a key"], ["paste", "A key that I have"], ["make", "A new key, for an hour"]];
const START = { way: "none", apiKey: "", tenant: "", tier: "", model: "", prompt: "Say in one sentence what a fair queue is.", tokens: TOKENS, streams: true };

export function Playground() {
  const [form, setForm] = useState(START);
  const [choices, setChoices] = useState({ models: [], tiers: [], tenants: [] });
  const [failure, setFailure] = useState(null);
  const [run, setRun] = useState(null);
  const ending = useRef(null);
  const set = (changes) => setForm((before) => ({ ...before, ...changes }));
  useEffect(() => {
    offered().then((found) => {
      setChoices(found);
      set({ model: found.models[0] ?? "", tenant: found.tenants[0] ?? "" });
    }, setFailure);
    return () => ending.current?.abort();
  }, []);
  const make = async () => {
    try {
      const tier = form.tier ? { tier: form.tier, max_tier: form.tier } : {};
      const expires_at = Math.floor(Date.now() / 1000) + KEY_LIVES_S;
      const { data } = await ask("POST", "keys", { body: { tenant: form.tenant, label: "console playground", expires_at, ...tier } });
      set({ way: "paste", apiKey: data.key });
      setFailure(null);
    } catch (error) { setFailure(error); }
  };
  const submit = async (event) => {
    event.preventDefault();
    ending.current = new AbortController();
    setFailure(null);
    try {
      await asked(form, ending.current.signal, (changes) => setRun((before) => ({ ...before, ...changes })), setRun);
    } catch (error) {
      if (error.name !== "AbortError") setFailure(error);
    }
    setRun((before) => before && { ...before, isOn: false });
  };
  return html`<${Head} title="Playground">A request as a client would send it, through keys, limits and the queue<//>
    <${Failure} error=${failure} />
    <div class="two"><${Form} form=${form} set=${set} choices=${choices} make=${make} submit=${submit} run=${run} stop=${() => ending.current.abort()} />
      <${Answer} run=${run} /></div>`;
}

async function offered() {
  const [replicas, tiers, tenants] = await Promise.all([all("replicas"), all("tiers"), all("tenants")]);
  return {
    models: [...new Set(replicas.flatMap((each) => each.models))].sort(),
    tiers: tiers.map((each) => each.name), tenants: tenants.map((each) => each.name),
  };
}

async function asked(form, signal, tell, begin) {
  const start = performance.now();
  const since = () => performance.now() - start;
  begin({ isOn: true, text: "", notes: "", status: null, headers: {}, first_ms: null, total_ms: null });
  const body = { model: form.model, messages: [{ role: "user", content: form.prompt }], max_tokens: Number(form.tokens), stream: form.streams };
  const answer = await chat(body, { apiKey: form.way === "paste" ? form.apiKey : "", tier: form.tier, signal });
  tell({ status: answer.status, headers: Object.fromEntries(answer.headers) });
  if (!answer.ok || !form.streams) {
    const data = await answer.json();
    tell({ total_ms: since(), text: answer.ok ? data.choices[0]?.message?.content ?? "" : "", error: data.error?.message ?? null });
    return;
  }
  let text = "";
  let first_ms = null;
  for await (const each of events(answer)) {
    if (each.comment) tell({ notes: each.comment });
    if (!each.data || each.data === "[DONE]") continue;
    const data = JSON.parse(each.data);
    if (data.error) tell({ error: data.error.message });
    const more = data.choices?.[0]?.delta?.content ?? "";
    if (more && first_ms === null) first_ms = since();
    text += more;
    if (more) tell({ text, first_ms });
  }
  tell({ total_ms: since() });
}

function Form({ form, set, choices, make, submit, run, stop }) {
  const field = (name) => ({ value: form[name], onInput: (event) => set({ [name]: event.target.value }) });
  const options = (values) => values.map((each) => html`<option key=${each} value=${each}>${each}</option>`);
  return html`<form class="card replica" onSubmit=${submit}><div class="fields">
      <label>Key<select ...${field("way")}>${WAYS.map(([value, text]) => html`<option key=${value} value=${value}>${text}</option>`)}</select></label>
      ${form.way === "paste" && html`<label>API key<input type="password" autocomplete="off" required ...${field("apiKey")} /></label>`}
      ${form.way === "make" && html`<label>Tenant<select ...${field("tenant")}>${options(choices.tenants)}</select></label>`}
      <label>Tier<select ...${field("tier")}><option value="">the key's own</option>${options(choices.tiers)}</select></label>
      <label>Model<input list="models" required autocomplete="off" ...${field("model")} /><datalist id="models">${options(choices.models)}</datalist></label>
      <label>Tokens at most<input type="number" min="1" max="32768" required ...${field("tokens")} /></label>
    </div>
    <label class="field">Prompt<textarea rows="6" required ...${field("prompt")}></textarea></label>
    <label class="check"><input type="checkbox" checked=${form.streams} onChange=${(event) => set({ streams: event.target.checked })} /> Stream the answer</label>
    <div class="row">${form.way === "make"
      ? html`<button type="button" class="main" onClick=${make} disabled=${!form.tenant}>Make the key</button><span class="dim">From the first key on every client needs one.</span>`
      : html`<button type="submit" class="main" disabled=${run?.isOn}>Ask</button>${run?.isOn && html`<button type="button" onClick=${stop}>Stop</button>`}`}</div></form>`;
}

const ms = (value) => (value === null || value === undefined ? "–" : `${Math.round(Number(value))} ms`);

function Answer({ run }) {
  const told = run?.headers ?? {};
  return html`<section class="card replica"><h2>Answer</h2>
    ${run && html`<${Facts} facts=${[
      ["Status", run.status ?? "waiting"], ["Queue", html`<span data-testid="queue">${ms(told["x-fairgate-queue-ms"])}</span>`], ["Tier", told["x-fairgate-tier"] ?? "–"],
      ["Position at entry", told["x-fairgate-position"] ?? "–"], ["Replica", told["x-fairgate-replica"] ?? "–"],
      ["First token", ms(run.first_ms)], ["Whole answer", ms(run.total_ms)], ["Request", html`<code>${told["x-request-id"] ?? "–"}</code>`],
    ]} />`}
    ${run?.notes && run.isOn && !run.text && html`<p class="note" role="status">${run.notes}</p>`}
    ${run?.error && html`<p class="note bad" role="alert">${run.error}</p>`}
    <p class="answer" data-testid="answer" aria-busy=${run?.isOn ?? false}>${run?.text ?? html`<span class="dim">Nothing was asked yet.</span>`}</p></section>`;
}
