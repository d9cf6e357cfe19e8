// How many replicas there should be, and by what that is judged.
import { all, useLive } from "./api.js";
import { Badge, Facts, Failure, Head, count, html, seconds } from "./ui.js";

const LOOK_MS = 3000;
// The signal is between these.
const LEAST = -2;
const MOST = 1;
const place = (signal) => `${Math.min(99.5, Math.max(0, ((signal - LEAST) / (MOST - LEAST)) * 100))}%`;

export function Scaling() {
  const { data, error } = useLive(() => all("scale"), LOOK_MS);
  return html`<${Head} title="Scaling">Advice; who makes and removes replicas follows it<//>
    <${Failure} error=${error} />
    ${data?.length === 0 && html`<p class="empty">There is no replica to judge by.</p>`}
    ${data?.map((advice) => html`<${Advice} key=${advice.models.join(" ")} advice=${advice} />`)}`;
}

function verdict({ advised, replicas }) {
  if (advised === null || advised === replicas) return ["good", advised === null ? "no advice yet" : "as many as there should be"];
  return advised > replicas ? ["warn", `${advised - replicas} more`] : ["warn", `${replicas - advised} fewer`];
}

function Advice({ advice }) {
  const [kind, text] = verdict(advice);
  return html`<section class="card replica"><header><h2>${advice.models.join(", ")}</h2><${Badge} kind=${kind}>${text}<//></header>
    <div><h3>Signal ${advice.signal.toFixed(2)}: more replicas below ${advice.below}, fewer above ${advice.above}</h3>
      <div class="signal" aria-hidden="true"><b style=${{ left: place(advice.below) }}></b><b style=${{ left: place(advice.above) }}></b><i style=${{ left: place(advice.signal) }}></i></div></div>
    <${Facts} facts=${[
      ["Replicas", count(advice.replicas)], ["Usable", count(advice.usable)], ["Advised", count(advice.advised)],
      ["Advised since", seconds(advice.advised_for_s)], ["Waiting", count(advice.waiting)], ["Bounds", `${advice.min} to ${advice.max}`],
      ["Below for", seconds(advice.below_for_s)], ["Above for", seconds(advice.above_for_s)], ["Must last", seconds(advice.hold_s)], ["Between two", seconds(advice.cooldown_s)],
    ]} /></section>`;
}
