// The small parts that all views are made of.
import { h } from "preact";
import { useEffect, useRef } from "preact/hooks";
import htm from "htm";

export const html = htm.bind(h);

export const count = (value) => (value === null || value === undefined ? "–" : Number(value).toLocaleString("en"));
export const percent = (value) => (value === null || value === undefined ? "–" : `${(value * 100).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`);
export const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");
export const instant = (at) => new Date(at * 1000).toLocaleString("en-GB");

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return `${(value / 3600).toFixed(1)} h`;
}

// A share, with a mark where the fair one is.
export function Share({ share, fair }) {
  if (share === null) return html`<span class="dim">–</span>`;
  return html`<span class="meter"><span class="bar" aria-hidden="true">
    <i style=${{ width: `${Math.min(100, share * 100)}%` }}></i>
    ${fair !== null && html`<b style=${{ left: `${Math.min(98.5, fair * 100)}%` }}></b>`}
  </span><span>${percent(share)}${fair !== null && html` <span class="dim">fair ${percent(fair)}</span>`}</span></span>`;
}

export const Badge = ({ kind = "", children }) => html`<span class="badge ${kind}">${children}</span>`;

export const Failure = ({ error }) =>
  error ? html`<p class="note bad" role="alert">${error.message}</p>` : null;

export function Head({ title, children }) {
  return html`<div class="head"><h1 tabindex="-1">${title}</h1><p>${children}</p></div>`;
}

// Headings are [text, is a number]; `caption` is for those who hear the page.
export function Table({ caption, heads, children }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}><table>
    <thead><tr>${heads.map(([text, isNumber]) => html`<th scope="col" class=${isNumber ? "n" : ""}>${text}</th>`)}</tr></thead>
    <tbody>${children}</tbody>
  </table></div>`;
}

export function Facts({ facts }) {
  return html`<dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

// Asks before what cannot be taken back. `asked`: { title, text, verb, act } or null.
export function Confirm({ asked, done }) {
  const box = useRef(null);
  useEffect(() => {
    if (asked && !box.current.open) box.current.showModal();
    if (!asked && box.current.open) box.current.close();
  }, [asked]);
  const go = () => { done(); asked.act(); };
  return html`<dialog ref=${box} onClose=${done} aria-labelledby="confirm-title">
    ${asked && html`<h2 id="confirm-title">${asked.title}</h2><p>${asked.text}</p>
      <div class="row"><button class="main" onClick=${go}>${asked.verb}</button>
      <button onClick=${done}>Leave it</button></div>`}
  </dialog>`;
}
