// What a dry run said: nothing of it has happened.
import { Facts, Table, count, html, seconds } from "./ui.js";

const PATHS = 6;
const TURNS = 20;

export const shortly = (paths) => paths.slice(0, PATHS).join(", ") + (paths.length > PATHS ? ` and ${paths.length - PATHS} more` : "");
const value = (each) => (each === null || each === undefined ? "–" : JSON.stringify(each));

export function Rehearsal({ told }) {
  const { affected, changes, reaction } = told;
  return html`<section class="card replica" aria-live="polite"><h2>Dry run</h2>
    ${!told.would_change && html`<p class="note">Nothing would change.</p>`}
    ${changes.length > 0 && html`<${Table} caption="Changes" heads=${[["Changed", 0], ["From", 0], ["To", 0]]}>
      ${changes.map((each) => html`<tr key=${each.path}><th scope="row"><code>${each.path}</code></th><td class="wrap"><code>${value(each.before)}</code></td><td class="wrap"><code>${value(each.after)}</code></td></tr>`)}<//>`}
    ${told.would_change && html`<${Facts} facts=${[
      ["Waiting in those tiers", count(affected.waiting)], ["Running in them", count(affected.running)], ["Keys", count(affected.keys)],
      ["Tenants", affected.tenants.length ? affected.tenants.join(", ") + (affected.tenants_more ? ` and ${affected.tenants_more} more` : "") : "none"],
      ...(reaction ? [["Granted at once", count(reaction.granted_at_once.length)], ["Refused at once", count(reaction.refused_at_once.length)],
        ["Moved earlier", count(reaction.moved_earlier)], ["Moved later", count(reaction.moved_later)]] : []),
    ]} />`}
    ${reaction?.turns.length > 0 && html`<${Table} caption="Those that are served next then" heads=${[["Next then", 0], ["Tenant", 0], ["User", 0], ["Tier", 0], ["Turn", 1], ["Expected wait", 1]]}>
      ${reaction.turns.slice(0, TURNS).map((turn) => html`<tr key=${turn.request_id}><th scope="row" class="mono">${turn.request_id}</th><td>${turn.tenant}</td><td>${turn.user}</td>
        <td>${turn.tier_before === turn.tier_after ? turn.tier_after : `${turn.tier_before} → ${turn.tier_after}`}</td>
        <td class="n">${count(turn.turn_before)} → ${count(turn.turn_after)}</td><td class="n">${seconds(turn.expected_wait_before_s)} → ${seconds(turn.expected_wait_after_s)}</td></tr>`)}<//>`}
  </section>`;
}
