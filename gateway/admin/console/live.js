// Who waits, behind whom, and who has more or less than its part.
import { useEffect, useState } from "preact/hooks";
import { follow, get, useLive } from "./api.js";
import { Chart, SERIES_MAX } from "./chart.js";
import { Failure, Head, Share, Table, clock, count, html, percent, seconds } from "./ui.js";

const LOOK_MS = 2000;
const HISTORY_MS = 5000;
const EVENTS_MAX = 100;
const GREATEST = 3;
const HEADS = [["Waiting", 1], ["Held", 1], ["Running", 1], ["Longest wait", 1], ["Last in line", 1], ["Expected wait", 1], ["Share of what runs", 0]];

export function Live() {
  const now = useLive((signal) => get("overview", {}, signal), LOOK_MS);
  const past = useLive((signal) => get("overview/history", {}, signal), HISTORY_MS);
  return html`<${Head} title="Live">${now.data ? html`fairgate ${now.data.version}, ${clock(now.data.at)}` : "Counting."}<//>
    <${Failure} error=${now.error} />
    ${now.data && html`<${Tiles} seen=${now.data} /><${Tiers} tiers=${now.data.tiers} /><${Tenants} seen=${now.data} />`}
    ${past.data && html`<${Charts} past=${past.data} />`}
    <${Events} />`;
}

function Tiles({ seen }) {
  const longest = Math.max(...seen.tiers.map((tier) => tier.oldest_wait_s ?? 0));
  return html`<dl class="tiles">
    <div><dt>Waiting</dt><dd data-testid="waiting">${count(seen.waiting)} <small>of ${count(seen.waiting_most)}</small></dd></div>
    <div><dt>Held by a cap</dt><dd>${count(seen.held)}</dd></div>
    <div><dt>Running</dt><dd>${count(seen.running)}</dd></div>
    <div><dt>Longest wait</dt><dd>${seen.waiting + seen.held ? seconds(longest) : "–"}</dd></div>
    <div><dt>Tenants here</dt><dd>${count(seen.tenants.length + seen.tenants_more)}</dd></div>
  </dl>`;
}

const figures = (line) => html`
  <td class="n">${count(line.waiting)}</td><td class="n">${count(line.held)}</td><td class="n">${count(line.running)}</td>
  <td class="n">${seconds(line.oldest_wait_s)}</td><td class="n">${count(line.position)}</td><td class="n">${seconds(line.expected_wait_s)}</td>`;

function Tiers({ tiers }) {
  return html`<section class="card"><h2>Tiers</h2><${Table} caption="Tiers" heads=${[["Tier", 0], ...HEADS]}>
    ${tiers.map((tier) => html`<tr key=${tier.name}><th scope="row">${tier.name}</th>${figures(tier)}
      <td><${Share} share=${tier.share} fair=${tier.fair_share} /></td></tr>`)}<//></section>`;
}

function Tenants({ seen }) {
  const [open, setOpen] = useState(new Set());
  const turn = (name) => setOpen((before) => {
    const after = new Set(before);
    if (!after.delete(name)) after.add(name);
    return after;
  });
  return html`<section class="card"><h2>Tenants</h2>
    ${seen.tenants.length === 0 && html`<p class="empty">Nothing waits and nothing runs.</p>`}
    ${seen.tenants.length > 0 && html`<${Table} caption="Tenants" heads=${[["Tenant", 0], ["Weight", 1], ...HEADS]}>
      ${seen.tenants.map((tenant) => [
        html`<tr key=${tenant.name}><th scope="row"><button class="link" aria-expanded=${open.has(tenant.name)}
          onClick=${() => turn(tenant.name)}>${tenant.name}</button></th><td class="n">${tenant.weight}</td>${figures(tenant)}
          <td><${Share} share=${tenant.share} fair=${tenant.fair_share} /></td></tr>`,
        open.has(tenant.name) && tenant.tiers.map((tier) => html`<tr class="under" key=${`${tenant.name}/${tier.name}`}>
          <th scope="row">${tier.name}</th><td></td>${figures(tier)}<td></td></tr>`),
      ])}<//>`}
    ${seen.tenants_more > 0 && html`<p class="empty">and ${count(seen.tenants_more)} tenants with less.</p>`}</section>`;
}

function Charts({ past }) {
  const [chosen, setChosen] = useState("");
  const total = (each) => each.waiting.reduce((sum, value) => sum + value, 0) + each.running.reduce((sum, value) => sum + value, 0);
  const greatest = [...past.tenants].sort((one, other) => total(other) - total(one)).slice(0, GREATEST)
    .sort((one, other) => (one.name < other.name ? -1 : 1));
  const shown = past.tenants.some((each) => each.name === chosen) ? past.tenants.filter((each) => each.name === chosen) : greatest;
  const waiting = past.tiers.slice(0, SERIES_MAX).map((tier, slot) => ({ label: tier.name, values: tier.waiting, slot }));
  const shares = shown.flatMap((tenant, slot) => [
    { label: tenant.name, values: tenant.share, slot },
    { label: `${tenant.name}, fair`, values: tenant.fair_share, slot, isDashed: true },
  ]);
  return html`<div class="two">
    <section class="card"><h2>Waiting by tier</h2>
      <${Chart} at=${past.at} lines=${waiting} format=${(value) => count(value)} label="Requests waiting in each tier over the last minutes; the table of tiers has the present figures." /></section>
    <section class="card"><div class="row"><h2>Share against fair share</h2>
      <label class="row dim">of <select value=${chosen} onChange=${(event) => setChosen(event.target.value)}>
        <option value="">the greatest</option>${past.tenants.map((each) => html`<option key=${each.name} value=${each.name}>${each.name}</option>`)}</select></label></div>
      <${Chart} at=${past.at} lines=${shares} format=${percent} most=${1} label="Share of what runs and fair share of tenants over the last minutes; the table of tenants has the present figures." /></section>
  </div>`;
}

const told = (event) => Object.entries(event).filter(([name, value]) => name !== "at" && value !== null)
  .map(([name, value]) => `${name}: ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");

function Events() {
  const [events, setEvents] = useState([]);
  useEffect(() => {
    const end = new AbortController();
    let number = 0;
    follow((kind, event) => setEvents((before) => [{ id: number++, kind, event }, ...before].slice(0, EVENTS_MAX)), end.signal);
    return () => end.abort();
  }, []);
  return html`<section class="card"><h2 id="events">What happened</h2>
    ${events.length === 0 && html`<p class="empty">Nothing since this page was opened.</p>`}
    ${events.length > 0 && html`<ul class="events" tabindex="0" aria-labelledby="events">${events.map(({ id, kind, event }) => html`<li key=${id}>
      <time>${event.at ? clock(event.at) : ""}</time><span><strong>${kind}</strong> <span class="dim">${told(event)}</span></span></li>`)}</ul>`}</section>`;
}
