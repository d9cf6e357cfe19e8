// Lines over time. What they show stands in the tables too: a canvas is nothing to a screen reader.
import { useEffect, useRef } from "preact/hooks";
import { html } from "./ui.js";

const HEIGHT = 220;
export const SERIES_MAX = 6;

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// `lines`: { label, values, slot, isDashed }; `format` is of the values.
export function Chart({ at, lines, label, format, most }) {
  const box = useRef(null);
  const plot = useRef(null);
  const shape = lines.map((line) => `${line.label}|${line.slot}|${line.isDashed ?? false}`).join("\n");
  const data = [at, ...lines.map((line) => line.values)];
  const latest = useRef(data);
  latest.current = data;

  useEffect(() => {
    const make = () => {
      plot.current?.destroy();
      plot.current = new window.uPlot(options(box.current.clientWidth, lines, format, most), latest.current, box.current);
    };
    make();
    const resized = new ResizeObserver(([entry]) => plot.current.setSize({ width: entry.contentRect.width, height: HEIGHT }));
    resized.observe(box.current);
    const themed = new MutationObserver(make);
    themed.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    return () => { resized.disconnect(); themed.disconnect(); plot.current?.destroy(); plot.current = null; };
  }, [shape]);
  useEffect(() => { plot.current?.setData(latest.current); });

  return html`<div class="chart" ref=${box} role="img" aria-label=${label}></div>
    <ul class="legend">${lines.filter((line) => !line.isDashed).map((line) => html`<li><i class="s${line.slot % SERIES_MAX}"></i>${line.label}</li>`)}
      ${lines.some((line) => line.isDashed) && html`<li>dashed: the fair share</li>`}</ul>`;
}

function options(width, lines, format, most) {
  const grid = { stroke: css("--line"), width: 1 };
  const axis = { stroke: css("--dim"), grid, ticks: grid, font: "12px system-ui, sans-serif" };
  return {
    width, height: HEIGHT, legend: { show: false }, cursor: { drag: { x: false, y: false } },
    scales: { x: { time: true }, y: { range: (_, low, high) => [0, most ?? Math.max(1, high * 1.1)] } },
    axes: [
      { ...axis, space: 84, values: (_, ticks) => ticks.map((tick) => new Date(tick * 1000).toLocaleTimeString("en-GB")) },
      { ...axis, size: 56, values: (_, ticks) => ticks.map(format) },
    ],
    series: [{}, ...lines.map((line) => ({
      label: line.label, stroke: css(`--s${line.slot % SERIES_MAX}`), width: line.isDashed ? 1.5 : 2,
      dash: line.isDashed ? [5, 4] : undefined, points: { show: false }, spanGaps: false,
    }))],
  };
}
