// How far batches have come, how long they still take, and what keeps them.
import { get, useLive } from "./api.js";
import { Badge, Failure, Head, Share, Table, count, html, instant, seconds } from "./ui.js";

const LOOK_MS = 3000;
const HEADS = [["Batch", 0], ["State", 0], ["Tenant", 0], ["User", 0], ["Tier", 0], ["Done", 0], ["Failed", 1], ["Lines", 1], ["Time left", 1], ["Window ends", 0], ["Waits for", 0]];
const KINDS = { in_progress: "good", completed: "good", validating: "warn", finalizing: "warn", cancelling: "warn", failed: "bad", expired: "bad", cancelled: "" };
const ENDED = new Set(["completed", "failed", "expired", "cancelled"]);

export function Batches() {
  const { data, error } = useLive((signal) => get("batches", {}, signal), LOOK_MS);
  const open = data?.data.filter((each) => !ENDED.has(each.status)).length;
  return html`<${Head} title="Batches">${data ? `${count(open)} open; time left at the pace so far` : "Asking."}<//>
    <${Failure} error=${error} />
    ${data && !data.is_configured && html`<p class="empty">There are no batches: batches.files is not set.</p>`}
    ${data?.is_configured && data.data.length === 0 && html`<p class="empty">No batch was made yet.</p>`}
    ${data?.data.length > 0 && html`<section class="card"><h2>Open ones first</h2>
      <${Table} caption="Batches" heads=${HEADS}>${data.data.map((each) => html`<${Row} key=${each.id} batch=${each} />`)}<//>
      ${data.has_more && html`<p class="empty">and older ones.</p>`}</section>`}`;
}

function Row({ batch }) {
  const done = batch.completed + batch.failed;
  return html`<tr><th scope="row" class="mono" title=${instant(batch.created_at)}>${batch.id}</th>
    <td><${Badge} kind=${KINDS[batch.status]}>${batch.status}<//></td><td>${batch.tenant}</td><td>${batch.user}</td><td>${batch.tier}</td>
    <td><${Share} share=${batch.total ? done / batch.total : null} fair=${null} /></td>
    <td class="n">${count(batch.failed)}</td><td class="n">${count(done)} of ${count(batch.total)}</td>
    <td class="n">${seconds(batch.left_s)}</td><td>${ENDED.has(batch.status) ? "–" : instant(batch.expires_at)}</td><td>${batch.waits_for ?? "–"}</td></tr>`;
}
