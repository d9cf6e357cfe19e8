// Why one request waits.
import { useEffect, useRef } from "preact/hooks";
import { get, named, useLive } from "./api.js";
import { Badge, Facts, Failure, Table, count, html, seconds } from "./ui.js";

const LOOK_MS = 2000;
const HEADS = [["Replica", 0], ["Gate", 0], ["Why", 0], ["Slots", 1], ["Engine queue", 1], ["Kept away", 1], ["TPOT", 1], ["KV tokens", 1]];

// Looked for first: of one that has ended nothing can be explained, and that is no error.
async function explained(id, signal) {
  const here = await get("requests", { id, limit: 1 }, signal);
  return here.data.length ? get(`requests/${named(id)}/explain`, {}, signal) : { hasEnded: true };
}

export function Explanation({ id, close, cancel }) {
  const { data, error } = useLive((signal) => explained(id, signal), LOOK_MS, id);
  const title = useRef(null);
  useEffect(() => title.current.focus(), [id]);
  return html`<section class="card replica" aria-labelledby="explained">
    <header><h2 id="explained" tabindex="-1" ref=${title}>Request <span class="mono">${id}</span></h2>
      <div class="row"><button class="small danger" onClick=${cancel}>End it</button><button class="small" onClick=${close}>Close</button></div></header>
    ${(data?.hasEnded || error?.status === 404) ? html`<p class="note" role="status">It is no longer here: it has ended.</p>` : html`<${Failure} error=${error} />`}
    ${data?.summary && !error && html`<p class="note" data-testid="summary">${data.summary}</p><${Figures} told=${data} />
      ${data.ahead.length > 0 && html`<${Ahead} told=${data} />`}${data.replicas.length > 0 && html`<${Verdicts} verdicts=${data.replicas} />`}`}
  </section>`;
}

function Figures({ told }) {
  return html`<${Facts} facts=${[
    ["State", told.state], ["Tier", told.tier], ["Tenant", told.tenant], ["User", told.user], ["Model", told.model],
    ["Position", count(told.position)], ["Waited", seconds(told.waited_s)], ["Expected wait", seconds(told.expected_wait_s)],
    ["Patience left", seconds(told.patience_left_s)], ["Predicted cost", told.cost === null ? "–" : count(Math.round(told.cost))],
    ["Waiting in higher tiers", count(told.tiers_ahead)], ["Flows with an older claim", count(told.flows_ahead)],
    ...(told.is_floor_owed ? [["Floor", "its tier is owed its minimum share"]] : []),
    ...(told.is_aged ? [["Age", "it counts as the first tier by now"]] : []),
    ...(told.held_by ? [["Held by", `${told.held_by}: ${told.held_by_running} of ${told.held_by_most} run`]] : []),
  ]} />`;
}

function Ahead({ told }) {
  const flows = [...told.ahead, ...(told.flow ? [{ ...told.flow, isOwn: true }] : [])];
  return html`<div><h3>Claims: the smallest virtual start goes first</h3><${Table} caption="Claims"
    heads=${[["Tenant", 0], ["User", 0], ["Tenant's start", 1], ["User's start", 1], ["Waiting", 1]]}>
    ${flows.map((flow) => html`<tr key=${`${flow.tenant} ${flow.user}`}><th scope="row">${flow.tenant}${flow.isOwn ? " (this one)" : ""}</th><td>${flow.user}</td>
      <td class="n">${count(Math.round(flow.tenant_start))}</td><td class="n">${count(Math.round(flow.user_start))}</td><td class="n">${count(flow.waiting)}</td></tr>`)}<//></div>`;
}

function Verdicts({ verdicts }) {
  return html`<div><h3>What keeps it off each replica</h3><${Table} caption="Replicas" heads=${HEADS}>
    ${verdicts.map((each) => html`<tr key=${each.replica}><th scope="row">${each.replica}</th>
      <td><${Badge} kind=${each.closed_by ? "bad" : "good"}>${each.closed_by ?? "fits"}<//></td><td class="wrap">${each.reason ?? "It goes there when its turn comes."}</td>
      <td class="n">${count(each.occupied)} of ${each.slots === null ? "?" : count(each.slots)}</td><td class="n">${count(each.waiting)} of ${count(each.allowance)}</td>
      <td class="n">${count(each.slots_away)}</td><td class="n">${each.tpot_ms === null ? "–" : `${each.tpot_ms.toFixed(0)} of ${each.tpot_limit_ms.toFixed(0)} ms`}</td>
      <td class="n">${count(each.kv_tokens)}${each.kv_capacity_tokens === null ? "" : ` of ${count(each.kv_capacity_tokens)}`}</td></tr>`)}<//></div>`;
}
