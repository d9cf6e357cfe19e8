// Each replica: how full it is, which tiers it takes, and why not the others.
import { useState } from "preact/hooks";
import { all, ask, named, useLive } from "./api.js";
import { Badge, Confirm, Facts, Failure, Head, count, html, seconds } from "./ui.js";

const LOOK_MS = 2000;

export function Replicas() {
  const { data, error, refresh } = useLive(() => all("replicas"), LOOK_MS);
  const [asked, setAsked] = useState(null);
  const [failure, setFailure] = useState(null);
  const turn = async (replica, verb) => {
    try {
      await ask("POST", `replicas/${named(replica.name)}/${verb}`);
      setFailure(null);
    } catch (fault) {
      setFailure(fault);
    }
    refresh();
  };
  const drain = (replica) => setAsked({
    title: `Drain ${replica.name}?`, verb: "Drain",
    text: "Nothing new goes there; what runs is finished. It stays so over a restart, until it is undrained.",
    act: () => turn(replica, "drain"),
  });
  return html`<${Head} title="Replicas">${data ? `${count(data.length)} replicas and names` : "Asking."}<//>
    <${Failure} error=${failure ?? error} />
    ${data?.length === 0 && html`<p class="empty">There is no replica.</p>`}
    ${data?.map((replica) => html`<${Replica} key=${replica.name} replica=${replica} drain=${drain} undrain=${(each) => turn(each, "undrain")} />`)}
    <${Confirm} asked=${asked} done=${() => setAsked(null)} />`;
}

function state({ is_drained, live }) {
  if (live === null) return ["", "DNS name"];
  if (!live.is_up) return ["bad", "down"];
  if (live.is_draining || is_drained) return ["warn", live.load?.running ? "draining" : "drained"];
  if (live.circuit.state !== "closed") return ["bad", `breaker ${live.circuit.state.replace("_", " ")}`];
  return live.is_usable ? ["good", "in use"] : ["warn", "not used"];
}

function Replica({ replica, drain, undrain }) {
  const { live } = replica;
  const [kind, text] = state(replica);
  return html`<section class="card replica" data-replica=${replica.name}>
    <header><h2>${replica.name}</h2><${Badge} kind=${kind}>${text}<//>
      <span class="dim">${replica.models.join(", ") || "no model known"}${replica.engine && ` on ${replica.engine}`}</span>
      <div class="row">${replica.is_drained
        ? html`<button class="small" onClick=${() => undrain(replica)}>Undrain<span class="dim"> ${replica.name}</span></button>`
        : html`<button class="small" onClick=${() => drain(replica)}>Drain<span class="dim"> ${replica.name}</span></button>`}</div>
    </header>
    ${live === null && html`<p class="dim">${replica.members?.length ? `Behind it: ${replica.members.join(", ")}` : "No address is behind it."}</p>`}
    ${live?.health.error && html`<p class="note bad">${live.health.error}</p>`}
    ${live?.health.detail && html`<p class="note warn">${live.health.detail}</p>`}
    ${live?.circuit.reason && html`<p class="note warn">Its breaker was opened by: ${live.circuit.reason}${live.circuit.open_s ? `, for ${seconds(live.circuit.open_s)} more` : ""}.</p>`}
    ${live?.load && html`<${Load} live=${live} /><${Gates} name=${replica.name} live=${live} />`}
  </section>`;
}

function Load({ live: { load, limits, freeness, metrics } }) {
  const used = load.sequences + load.foreign;
  const part = load.slots ? Math.min(100, (used / load.slots) * 100) : 0;
  const scores = Object.values(freeness);
  return html`<span class="bar wide" aria-hidden="true"><i style=${{ width: `${part}%` }}></i></span>
    <${Facts} facts=${[
      ["Slots in use", `${count(used)} of ${load.slots === null ? "?" : count(load.slots)}`],
      ["Of others", count(load.foreign)],
      ["Engine queue", count(load.waiting_estimate)],
      ["Not begun", count(load.unstarted)],
      ["TPOT", limits.tpot_ms === null ? "–" : `${limits.tpot_ms.toFixed(1)} ms`],
      ["In-flight limit", limits.inflight === null ? "none" : count(Math.round(limits.inflight))],
      ["KV tokens", load.kv_capacity_tokens === null ? count(load.kv_tokens) : `${count(load.kv_tokens)} of ${count(load.kv_capacity_tokens)}`],
      ["Freeness, first tier", scores.length ? scores[0].toFixed(2) : "–"],
      ["Metrics", metrics.is_stale ? "stale" : `${seconds(metrics.age_s)} old`],
    ]} />`;
}

function Gates({ name, live: { gates, freeness } }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Gates of ${name}"><table><thead><tr>
      <th scope="col">Tier</th><th scope="col">Gate</th><th scope="col" class="n">Freeness</th><th scope="col" class="n">Headroom kept from it</th><th scope="col">Why closed</th></tr></thead>
    <tbody>${gates.map((gate) => html`<tr key=${gate.tier}><th scope="row">${gate.tier}</th>
      <td><${Badge} kind=${gate.closed_by ? "bad" : "good"}>${gate.closed_by ? "closed" : "open"}<//></td>
      <td class="n">${freeness[gate.tier]?.toFixed(2) ?? "–"}</td><td class="n">${gate.slots_away} slots</td>
      <td class="wrap">${gate.closed_by ? html`<code>${gate.closed_by}</code> ${gate.reason}` : ""}</td></tr>`)}</tbody></table></div>`;
}
