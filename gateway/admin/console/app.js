// The frame: who is in, which view is shown, light or dark.
import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { get, hasKey, needsKey, onSignedOut, signIn, signOut } from "./api.js";
import { html } from "./ui.js";
import { Batches } from "./batches.js";
import { Live } from "./live.js";
import { Playground } from "./playground.js";
import { Policy } from "./policy.js";
import { Replicas } from "./replicas.js";
import { Requests } from "./requests.js";
import { Scaling } from "./scaling.js";

const VIEWS = [
  ["live", "Live", Live], ["replicas", "Replicas", Replicas], ["requests", "Requests", Requests],
  ["policy", "Policy", Policy], ["scaling", "Scaling", Scaling], ["playground", "Playground", Playground],
  ["batches", "Batches", Batches],
];
const THEME = "fairgate.theme";

function theme() {
  let chosen = null;
  try { chosen = localStorage.getItem(THEME); } catch { /* as the system has it */ }
  return chosen ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

function wear(name) {
  document.documentElement.dataset.theme = name;
  try { localStorage.setItem(THEME, name); } catch { /* for this page alone */ }
}

const here = () => location.hash.replace(/^#\/?/, "").split("/")[0] || "live";

function App() {
  // Where no key is needed nobody is asked for one.
  const [entry, setEntry] = useState("asking");
  const [refusal, setRefusal] = useState(null);
  const enter = async () => {
    try {
      if (!hasKey() && (await needsKey())) {
        setEntry("out");
        return;
      }
      await get("overview", { limit: 1 });
      setRefusal(null);
      setEntry("in");
    } catch (error) {
      setRefusal(error);
      setEntry("out");
    }
  };
  useEffect(() => onSignedOut(() => setEntry("out")), []);
  useEffect(() => { enter(); }, []);
  if (entry === "asking") return html`<main class="loading"><p>Loading the console.</p></main>`;
  if (entry === "out") return html`<${SignIn} enter=${enter} refusal=${refusal} />`;
  return html`<${Frame} />`;
}

function SignIn({ enter, refusal }) {
  const [value, setValue] = useState("");
  const submit = (event) => {
    event.preventDefault();
    signIn(value.trim());
    setValue("");
    enter();
  };
  return html`<main class="signin"><div class="card"><form onSubmit=${submit}>
    <div class="brand"><img src="console/favicon.svg" alt="" /><h1>fairgate console</h1></div>
    <label class="field" for="key">Admin key
      <input id="key" type="password" autocomplete="current-password" required autofocus spellcheck=${false}
        value=${value} onInput=${(event) => setValue(event.target.value)} aria-describedby="key-kept" /></label>
    <p id="key-kept" class="dim">It is kept for this tab only, and goes nowhere but to this gateway.</p>
    ${refusal && html`<p class="note bad" role="alert">${refusal.message}</p>`}
    <button class="main" type="submit">Enter</button>
  </form></div></main>`;
}

function Frame() {
  const [view, setView] = useState(here());
  const [dark, setDark] = useState(theme() === "dark");
  const [isOn, setOn] = useState(navigator.onLine);
  useEffect(() => {
    const moved = () => setView(here());
    const keyed = (event) => {
      const chosen = VIEWS[Number(event.key) - 1];
      if (event.altKey && !event.ctrlKey && !event.metaKey && chosen) {
        event.preventDefault();
        location.hash = `/${chosen[0]}`;
      }
    };
    const connected = () => setOn(navigator.onLine);
    addEventListener("hashchange", moved);
    moved();
    addEventListener("keydown", keyed);
    addEventListener("online", connected);
    addEventListener("offline", connected);
    return () => {
      removeEventListener("hashchange", moved);
      removeEventListener("keydown", keyed);
      removeEventListener("online", connected);
      removeEventListener("offline", connected);
    };
  }, []);
  const [, title, View] = VIEWS.find(([name]) => name === view) ?? VIEWS[0];
  const isFirst = useRef(true);
  useEffect(() => {
    document.title = `${title} – fairgate console`;
    // Whoever went to another view goes on reading there; who just came begins at the top.
    if (!isFirst.current) document.querySelector("main h1")?.focus({ preventScroll: true });
    isFirst.current = false;
  }, [title]);
  const turn = () => { wear(dark ? "light" : "dark"); setDark(!dark); };
  return html`<a class="skip" href="#content" onClick=${(event) => { event.preventDefault(); document.querySelector("main h1")?.focus(); }}>To the content</a>
    <header class="top">
      <div class="brand"><img src="console/favicon.svg" alt="" />fairgate</div>
      <nav aria-label="Views">${VIEWS.map(([name, text], index) => html`<a href="#/${name}" title="Alt+${index + 1}"
        aria-current=${text === title ? "page" : undefined}>${text}</a>`)}</nav>
      <div class="tools">
        ${!isOn && html`<span role="status"><span class="dot off"></span>offline</span>`}
        <button class="small" onClick=${turn} aria-pressed=${dark}>Dark</button>
        ${hasKey() && html`<button class="small" onClick=${signOut}>Sign out</button>`}
      </div>
    </header>
    <main id="content"><${View} key=${title} /></main>`;
}

document.documentElement.dataset.theme = theme();
const root = document.getElementById("app");
root.textContent = "";
render(html`<${App} />`, root);
