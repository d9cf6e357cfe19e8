// One request among ten thousand: found, explained, ended.
import { useState } from "preact/hooks";
import { ask, get, named, useLive } from "./api.js";
import { Explanation } from "./explain.js";
import { Badge, Confirm, Failure, Head, Table, count, html, instant, seconds } from "./ui.js";

const PAGE = 50;
const LOOK_MS = 3000;
const NOTHING = { id: "", state: "", tier: "", tenant: "", user: "", model: "" };
const HEADS = [["Request", 0], ["State", 0], ["Tier", 0], ["Tenant", 0], ["User", 0], ["Model", 0], ["Age", 1], ["Waited", 1], ["Position", 1], ["Replica", 0], ["Actions", 0]];
const KINDS = { running: "good", waiting: "warn", held: "warn", ending: "" };

export function Requests() {
  const [typed, setTyped] = useState(NOTHING);
  const [wanted, setWanted] = useState(NOTHING);
  const [places, setPlaces] = useState([]);
  const [opened, setOpened] = useState(null);
  const [asked, setAsked] = useState(null);
  const [done, setDone] = useState(null);
  const after = places.at(-1);
  const page = useLive((signal) => found(wanted, after, signal), LOOK_MS, JSON.stringify([wanted, after]));
  const search = (event) => {
    event.preventDefault();
    setPlaces([]);
    setOpened(null);
    setWanted(Object.fromEntries(Object.entries(typed).map(([name, value]) => [name, value.trim()])));
  };
  const cancel = (id) => setAsked({
    title: "End this request?", verb: "End it",
    text: `Request ${id} is ended wherever it is. Its client is told so, and not to try again.`,
    act: async () => {
      try {
        await ask("POST", `requests/${named(id)}/cancel`);
        setDone({ kind: "good", text: `Request ${id} is ended.` });
        setOpened(null);
      } catch (error) {
        setDone({ kind: "bad", text: error.message });
      }
      page.refresh();
    },
  });
  const listed = page.data?.data ?? [];
  return html`<${Head} title="Requests">Those that wait and run, in the order in which they came<//>
    <${Search} typed=${typed} setTyped=${setTyped} search=${search} />
    ${done && html`<p class="note ${done.kind}" role="status">${done.text}</p>`}
    <${Failure} error=${page.error} />
    ${opened && html`<${Explanation} id=${opened} close=${() => setOpened(null)} cancel=${() => cancel(opened)} />`}
    <section class="card"><h2>Found</h2>
      ${page.data && listed.length === 0 && html`<p class="empty">No such request is here now.</p>`}
      ${listed.length > 0 && html`<${Table} caption="Requests" heads=${HEADS}>${listed.map((each) => html`<${Row} key=${each.id} request=${each} open=${setOpened} cancel=${cancel} />`)}<//>`}
      <div class="row">
        <button class="small" disabled=${places.length === 0} onClick=${() => setPlaces(places.slice(0, -1))}>Previous</button>
        <button class="small" disabled=${!page.data?.has_more} onClick=${() => setPlaces([...places, page.data.next])}>Next</button>
        <span class="dim">from ${count(places.length * PAGE + (listed.length ? 1 : 0))} to ${count(places.length * PAGE + listed.length)}</span>
      </div></section>
    <${Confirm} asked=${asked} done=${() => setAsked(null)} />`;
}

const found = (wanted, after, signal) => get("requests", { ...wanted, limit: PAGE, after }, signal);

function Search({ typed, setTyped, search }) {
  const field = (name) => ({ value: typed[name], onInput: (event) => setTyped({ ...typed, [name]: event.target.value }) });
  const text = (name, label) => html`<label>${label}<input ...${field(name)} autocomplete="off" spellcheck=${false} /></label>`;
  return html`<form class="card fields" role="search" aria-label="Requests" onSubmit=${search}>
    ${text("id", "Request id")}
    <label>State<select ...${field("state")}><option value="">any</option>${Object.keys(KINDS).map((each) => html`<option key=${each}>${each}</option>`)}</select></label>
    ${text("tier", "Tier")}${text("tenant", "Tenant")}${text("user", "User")}${text("model", "Model")}
    <button class="main" type="submit">Search</button></form>`;
}

function Row({ request, open, cancel }) {
  return html`<tr><th scope="row"><button class="link mono" onClick=${() => open(request.id)} title=${instant(request.arrived_at)}>${request.id}</button></th>
    <td><${Badge} kind=${KINDS[request.state]}>${request.state}<//></td><td>${request.tier}</td><td>${request.tenant}</td><td>${request.user}</td>
    <td>${request.model}</td><td class="n">${seconds(request.age_s)}</td><td class="n">${seconds(request.waited_s)}</td><td class="n">${count(request.position)}</td>
    <td>${request.replica ?? "–"}</td><td><button class="small danger" aria-label="End request ${request.id}" onClick=${() => cancel(request.id)}>End</button></td></tr>`;
}
