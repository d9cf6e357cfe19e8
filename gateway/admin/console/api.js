// How the console asks the gateway: with the admin key in a header, never in an address.
import { useEffect, useRef, useState } from "preact/hooks";

const ROOT = new URL("../admin/v1/", import.meta.url);
const PLAYGROUND = new URL("chat", import.meta.url);
const ENTRY = new URL("entry", import.meta.url);
const SLOT = "fairgate.admin-key";
const TIMEOUT_MS = 15000;

// sessionStorage: it outlives a reload and ends with the tab; where it is forbidden, memory.
let key = stored();
const outs = new Set();

function stored() {
  try { return sessionStorage.getItem(SLOT) ?? ""; } catch { return ""; }
}

export function signIn(value) {
  key = value;
  try { sessionStorage.setItem(SLOT, value); } catch { /* it stays in memory */ }
}

export function signOut() {
  key = "";
  try { sessionStorage.removeItem(SLOT); } catch { /* it was in memory alone */ }
  for (const out of outs) out();
}

// Whether anybody here is asked for a key at all.
export async function needsKey() {
  const answer = await fetch(ENTRY, { cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(TIMEOUT_MS) });
  return (await answer.json()).needs_key;
}

export const hasKey = () => key !== "";
export function onSignedOut(out) {
  outs.add(out);
  return () => outs.delete(out);
}

export class Refused extends Error {
  constructor(status, error) {
    super(error?.message ?? `The gateway answered ${status}.`);
    this.status = status;
    this.code = error?.code ?? null;
  }
}

function headers(more) {
  return { ...(key ? { authorization: `Bearer ${key}` } : {}), ...more };
}

// Asks /admin/v1/`path`; gives { data, etag }. Throws Refused, or TypeError without a connection.
export async function ask(method, path, { body, match, query, signal } = {}) {
  const url = new URL(path, ROOT);
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== "" && value !== null && value !== undefined) url.searchParams.set(name, value);
  }
  const limit = AbortSignal.timeout(TIMEOUT_MS);
  const answer = await fetch(url, {
    method,
    headers: headers({
      ...(body === undefined ? {} : { "content-type": "application/json" }),
      ...(match ? { "if-match": match } : {}),
    }),
    body: body === undefined ? undefined : JSON.stringify(body),
    signal: signal ? AbortSignal.any([signal, limit]) : limit,
    cache: "no-store", credentials: "omit", redirect: "error",
  });
  const text = await answer.text();
  const data = text && (answer.headers.get("content-type") ?? "").includes("json") ? JSON.parse(text) : null;
  if (!answer.ok) {
    if (answer.status === 403 && data?.error?.code === "forbidden") signOut();
    throw new Refused(answer.status, data?.error);
  }
  return { data, etag: answer.headers.get("etag") };
}

export const get = async (path, query, signal) => (await ask("GET", path, { query, signal })).data;
export const named = (name) => encodeURIComponent(name);

// Every page of a list, up to `most` items.
export async function all(path, most = 1000) {
  const page = await get(path, { limit: most });
  return page.data;
}

export async function chat(body, { apiKey, tier, signal }) {
  return fetch(PLAYGROUND, {
    method: "POST",
    headers: headers({
      "content-type": "application/json",
      ...(apiKey ? { "x-playground-key": apiKey } : {}),
      ...(tier ? { "x-fairgate-tier": tier } : {}),
    }),
    body: JSON.stringify(body), signal, cache: "no-store", credentials: "omit", redirect: "error",
  });
}

// The events of an SSE body, one after another: { event, data, comment }.
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split(/\r?\n\r?\n/);
      rest = parts.pop();
      for (const part of parts) yield parsed(part);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parsed(part) {
  const found = { event: "message", data: "", comment: "" };
  for (const line of part.split(/\r?\n/)) {
    if (line.startsWith("data:")) found.data += line.slice(5).trimStart();
    else if (line.startsWith("event:")) found.event = line.slice(6).trim();
    else if (line.startsWith(":")) found.comment += line.slice(1).trim();
  }
  return found;
}

// What happens in the gateway, until `signal`; begins anew where the stream ends.
export async function follow(tell, signal) {
  while (!signal.aborted) {
    try {
      const answer = await fetch(new URL("events", ROOT), { headers: headers(), signal, cache: "no-store", credentials: "omit" });
      if (answer.ok) {
        for await (const each of events(answer)) {
          if (each.data && each.event !== "heartbeat") tell(each.event, JSON.parse(each.data));
        }
      }
    } catch { /* the connection broke: the figures say so */ }
    await new Promise((resume) => setTimeout(resume, 2000));
  }
}

// Asks again and again while the page is seen: { data, error, refresh }. `every_ms` 0: once.
export function useLive(fetcher, every_ms, key = "") {
  const [state, setState] = useState({ data: null, error: null });
  const [turn, setTurn] = useState(0);
  const latest = useRef(fetcher);
  latest.current = fetcher;
  useEffect(() => {
    const end = new AbortController();
    let timer = 0;
    const look = async () => {
      clearTimeout(timer);
      if (!document.hidden) {
        try {
          const data = await latest.current(end.signal);
          if (!end.signal.aborted) shown(() => setState({ data, error: null }));
        } catch (error) {
          if (!end.signal.aborted) setState((before) => ({ ...before, error }));
        }
      }
      if (every_ms && !end.signal.aborted) timer = setTimeout(look, every_ms);
    };
    const seen = () => { if (!document.hidden) look(); };
    document.addEventListener("visibilitychange", seen);
    look();
    return () => {
      end.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [turn, key, every_ms]);
  return { ...state, refresh: () => setTurn((before) => before + 1) };
}

const UPDATE = "console-update";

// Measures from new data until it was painted: what a slow page makes its reader wait.
function shown(change) {
  const start = performance.now();
  change();
  const painted = () => {
    if (performance.getEntriesByName(UPDATE).length > 200) performance.clearMeasures(UPDATE);
    performance.measure(UPDATE, { start, end: performance.now() });
  };
  requestAnimationFrame(() => requestAnimationFrame(painted));
}
