// The policy: edited as a table of tiers or as the whole document, tried out, put, taken back.
import { useEffect, useState } from "preact/hooks";
import { ask, get, useLive } from "./api.js";
import { Rehearsal, shortly } from "./rehearsal.js";
import { Badge, Confirm, Failure, Head, Table, html, instant } from "./ui.js";

const TOLD_BESIDE = ["object", "source", "version", "set_aside"];
const HISTORY_MS = 10000;
const COLUMNS = [["weight", "Weight"], ["queue_limit", "Queue limit"], ["tpot_limit_ms", "TPOT limit, ms"], ["patience_s", "Patience, s"],
  ["min_share", "Least share"], ["ttft_target_ms", "TTFT target, ms"], ["tpot_target_ms", "TPOT target, ms"]];

const written = (policy) => JSON.stringify(Object.fromEntries(Object.entries(policy).filter(([name]) => !TOLD_BESIDE.includes(name))), null, 2);

function read(text) {
  try { return [JSON.parse(text), null]; } catch (error) { return [null, error]; }
}

export function Policy() {
  const [known, setKnown] = useState(null);
  const [text, setText] = useState("");
  const [outcome, setOutcome] = useState({});
  const [isBusy, setBusy] = useState(false);
  const [asked, setAsked] = useState(null);
  const history = useLive((signal) => get("policy/revisions", { limit: 20 }, signal), HISTORY_MS);
  const [document_, fault] = read(text);
  const load = async () => {
    const { data, etag } = await ask("GET", "policy");
    setKnown({ data, etag });
    setText(written(data));
  };
  const run = async (deed) => {
    setBusy(true);
    try { setOutcome((await deed()) ?? {}); } catch (error) { setOutcome({ error }); }
    setBusy(false);
    history.refresh();
  };
  useEffect(() => { run(load); }, []);
  const dry = () => run(async () => ({ rehearsal: (await ask("PUT", "policy", { query: { dry_run: true }, body: document_, match: known.etag })).data }));
  const put = () => run(async () => {
    await ask("PUT", "policy", { body: document_, match: known.etag });
    await load();
    return { done: "The policy is in force." };
  });
  const restore = (revision) => setAsked({
    title: `Have revision ${revision} again?`, text: "The policy becomes what it was then, at once; nothing that waits or runs is dropped.", verb: "Restore",
    act: () => run(async () => {
      await ask("POST", `policy/revisions/${revision}/restore`, { body: { moved_to: {} }, match: known.etag });
      await load();
      return { done: `The policy of revision ${revision} is in force.` };
    }),
  });
  const edit = (revision) => run(async () => {
    const found = await get(`policy/revisions/${revision}`);
    if (found.policy) setText(written(found.policy));
    return { done: found.policy ? `Revision ${revision} is in the editor; it is not in force.` : `By revision ${revision} the policy of the configuration came back.` };
  });
  const apply = () => setAsked({ title: "Put this policy in force?", text: "It decides from the next request on; nothing that waits or runs is dropped.", verb: "Apply", act: put });
  return html`<${Head} title="Policy">${known ? `version ${known.data.version}, from the ${known.data.source === "file" ? "configuration" : "store"}` : "Asking."}<//>
    <${Failure} error=${outcome.error} />${outcome.done && html`<p class="note good" role="status">${outcome.done}</p>`}
    ${known?.data.set_aside && html`<p class="note warn">A kept policy is set aside: ${known.data.set_aside.problems.join("; ")}</p>`}
    ${known && html`<section class="card"><h2>Tiers</h2>
      ${fault ? html`<p class="note bad">The document below is no JSON: ${fault.message}</p>` : html`<${Tiers} policy=${document_} change=${(next) => setText(written(next))} />`}</section>
    <section class="card"><h2 id="document">The whole document</h2>
      <textarea class="code" aria-labelledby="document" aria-invalid=${fault !== null} spellcheck=${false} value=${text} onInput=${(event) => setText(event.target.value)}></textarea>
      <div class="row"><button onClick=${dry} disabled=${isBusy || fault !== null}>Dry run</button>
        <button class="main" onClick=${apply} disabled=${isBusy || fault !== null || text === written(known.data)}>Apply</button>
        <button onClick=${() => run(load)} disabled=${isBusy}>Take what is in force</button></div></section>`}
    ${outcome.rehearsal && html`<${Rehearsal} told=${outcome.rehearsal} />`}
    <${History} history=${history} edit=${edit} restore=${restore} />
    <${Confirm} asked=${asked} done=${() => setAsked(null)} />`;
}

function Tiers({ policy, change }) {
  const tiers = Array.isArray(policy?.tiers) ? policy.tiers : [];
  const set = (index, name, value) => {
    const next = tiers.map((tier, at) => (at === index ? { ...tier, [name]: value === "" ? null : Number(value) } : tier));
    change({ ...policy, tiers: next });
  };
  return html`<div class="tiers-form"><${Table} caption="Tiers of the policy" heads=${[["Tier", 0], ...COLUMNS.map(([, text]) => [text, 0])]}>
    ${tiers.map((tier, index) => html`<tr key=${index}><th scope="row">${tier.name}</th>${COLUMNS.map(([name, text]) => html`<td key=${name}>
      <input type="number" step="any" min="0" aria-label="${text} of ${tier.name}" placeholder="by rank" value=${tier[name] ?? ""}
        onChange=${(event) => set(index, name, event.target.value)} /></td>`)}</tr>`)}<//></div>`;
}

function History({ history, edit, restore }) {
  const revisions = history.data?.data ?? [];
  return html`<section class="card"><h2>History</h2><${Failure} error=${history.error} />
    ${history.data && revisions.length === 0 && html`<p class="empty">It was never changed here.</p>`}
    ${revisions.length > 0 && html`<${Table} caption="History" heads=${[["Revision", 0], ["When", 0], ["Who", 0], ["What", 0], ["Changed", 0], ["Actions", 0]]}>
      ${revisions.map((each) => html`<tr key=${each.revision}><th scope="row">${each.revision}</th><td>${instant(each.at)}</td><td>${each.who}</td>
        <td><${Badge}>${each.action}<//></td><td class="wrap"><code>${each.changed === null ? "all of it" : shortly(each.changed)}</code></td>
        <td><div class="row"><button class="small" onClick=${() => edit(each.revision)}>Edit<span class="dim"> ${each.revision}</span></button>
          <button class="small" onClick=${() => restore(each.revision)}>Restore<span class="dim"> ${each.revision}</span></button></div></td></tr>`)}<//>`}</section>`;
}
