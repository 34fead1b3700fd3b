"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const config = { responsive: true, displaylogo: false, displayModeBar: false };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const touch = window.matchMedia("(pointer: coarse)");
  const drawn = new Set();
  const stems = { ttft: "TTFT", tpot: "TPOT", itl: "ITL", e2el: "E2EL" };
  const looks = {
    ttft: ["#2b87c8", "solid"], tpot: ["#d98c00", "dash"], itl: ["#b5659a", "dashdot"], e2el: ["#159a74", "longdash"],
  };

  // Lines and words of a plot in the colours of the page; those of the data are the same on both grounds.
  function template(printing) {
    const style = getComputedStyle(document.documentElement);
    const colour = (name, printed) => (printing ? printed : style.getPropertyValue(name).trim());
    const rule = colour("--rule", "#999999");
    const axis = { gridcolor: rule, zerolinecolor: rule, linecolor: rule, automargin: true };
    return {
      layout: {
        font: { color: colour("--ink", "#000000"), size: 12, family: "system-ui, sans-serif" },
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        hoverlabel: { font: { size: 12 } },
        xaxis: axis,
        yaxis: axis,
        dragmode: touch.matches ? false : "zoom",
      },
    };
  }

  function draw(place, spec) {
    if (drawn.has(place)) return;
    drawn.add(place);
    const layout = { ...spec.layout, autosize: true, template: template(false) };
    window.Plotly.newPlot(place, spec.data, layout, config);
    place.dataset.drawn = "yes";
    place.on("plotly_click", (event) => {
      const number = event.points[0] && event.points[0].customdata;
      if (number !== undefined && number !== null && document.getElementById(`trial-${number}`)) {
        location.hash = `trial-${number}`;
        reveal();
      }
    });
  }

  function curves(number) {
    const own = data.trials[number], base = data.trials[data.baseline];
    const traces = [];
    for (const [stem, values] of Object.entries(own.curves)) {
      const [colour, dash] = looks[stem];
      const percents = data.shares.map((share) => Math.round(share * 10000) / 100);
      const shown = { mode: "lines", y: percents, hovertemplate: `${stems[stem]}: %{y} % up to %{x} ms<extra></extra>` };
      traces.push({ ...shown, x: values, name: stems[stem], legendgroup: stem, line: { color: colour, dash, width: 2 } });
      if (Number(number) !== data.baseline && base && base.curves[stem]) {
        traces.push({
          ...shown, x: base.curves[stem], name: `${stems[stem]} of today's flags`, legendgroup: stem, showlegend: false,
          line: { color: colour, dash: "dot", width: 1 }, opacity: 0.8,
        });
      }
    }
    const layout = {
      height: 360, margin: { l: 56, r: 16, t: 24, b: 48 }, hovermode: "closest",
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      xaxis: { type: "log", title: { text: "ms" } }, yaxis: { title: { text: "% of requests (ITL: of gaps)" }, range: [0, 101] },
    };
    return { data: traces, layout };
  }

  // One row a track over a common time: they have units of their own.
  function timeline(number) {
    const own = data.trials[number].timeline;
    const rows = own.tracks.length, gap = 0.05, height = (1 - gap * (rows - 1)) / rows;
    const layout = {
      height: 90 + 84 * rows, margin: { l: 64, r: 16, t: 40, b: 44 }, showlegend: false, hovermode: "closest",
      xaxis: { title: { text: "s since the trial began" }, anchor: `y${rows === 1 ? "" : rows}` }, annotations: [], shapes: [],
    };
    const traces = own.tracks.map((track, place) => {
      const id = place === 0 ? "" : String(place + 1), top = 1 - place * (height + gap);
      layout[`yaxis${id}`] = { domain: [Math.max(0, top - height), top], rangemode: "tozero", nticks: 3 };
      layout.annotations.push({
        x: 0, y: top, xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", showarrow: false, font: { size: 11 },
        text: `${track.name}, ${track.unit} (${track.of})`,
      });
      return {
        x: own.at, y: track.values, yaxis: `y${id}`, mode: "lines+markers", connectgaps: true, marker: { size: 3 },
        line: { color: "#2b87c8", width: 1.5 }, hovertemplate: `${track.name}: %{y} at %{x} s<extra></extra>`,
      };
    });
    for (const [start, end] of own.rounds) {
      layout.shapes.push({
        type: "rect", xref: "x", yref: "paper", x0: start, x1: end, y0: 0, y1: 1, layer: "below",
        fillcolor: "#828a93", opacity: 0.12, line: { width: 0 },
      });
    }
    for (const mark of own.throttles) {
      layout.shapes.push({
        type: "line", xref: "x", yref: "paper", x0: mark.at, x1: mark.at, y0: 0, y1: 1,
        line: { color: mark.bad ? "#d1571b" : "#d98c00", width: mark.bad ? 2 : 1, dash: mark.bad ? "solid" : "dot" },
      });
    }
    if (own.throttles.length) {
      traces.push({
        x: own.throttles.map((mark) => mark.at), y: own.throttles.map(() => 0), mode: "markers", hoverinfo: "text",
        marker: { symbol: "triangle-up", size: 9, color: "#d1571b" }, hovertext: own.throttles.map((mark) => mark.text),
      });
    }
    return { data: traces, layout };
  }

  function drawTrial(details) {
    for (const log of details.querySelectorAll("pre.log")) log.scrollTop = log.scrollHeight; // its end is what tells
    for (const place of details.querySelectorAll("[data-curves]")) draw(place, curves(place.dataset.curves));
    for (const place of details.querySelectorAll("[data-timeline]")) draw(place, timeline(place.dataset.timeline));
  }

  function reveal() {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    if (target.tagName === "DETAILS") target.open = true;
    target.scrollIntoView();
  }

  function recolour(printing) {
    for (const place of drawn) window.Plotly.relayout(place, { template: template(printing) });
  }

  async function copy(button) {
    const source = document.getElementById(button.dataset.copy);
    let done = false;
    try {
      await navigator.clipboard.writeText(source.textContent);
      done = true;
    } catch {
      const range = document.createRange();
      range.selectNodeContents(source);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      done = document.execCommand("copy");
    }
    button.textContent = done ? "Copied" : "Press Ctrl+C";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  }

  // Where the page comes from `--watch`: ask for a newer one, and keep what is open and where one was.
  function watch() {
    const key = `sweep ${location.pathname}`;
    const kept = JSON.parse(sessionStorage.getItem(key) || "null");
    if (kept) {
      for (const id of kept.open) {
        const details = document.getElementById(id);
        if (details) details.open = true;
      }
      scrollTo(0, kept.top);
    }
    setInterval(async () => {
      if (document.hidden) return;
      try {
        const answer = await fetch("version", { cache: "no-store" });
        if (!answer.ok || (await answer.text()) === data.version) return;
      } catch {
        return;
      }
      const open = [...document.querySelectorAll("details[open]")].map((details) => details.id);
      sessionStorage.setItem(key, JSON.stringify({ open, top: scrollY }));
      location.reload();
    }, 5000);
  }

  for (const details of document.querySelectorAll("details.trial")) {
    details.addEventListener("toggle", () => { if (details.open) drawTrial(details); });
  }
  for (const button of document.querySelectorAll("button.copy")) button.addEventListener("click", () => copy(button));
  dark.addEventListener("change", () => recolour(false));
  addEventListener("beforeprint", () => recolour(true));
  addEventListener("afterprint", () => recolour(false));
  addEventListener("hashchange", reveal);

  const waiting = Object.entries(data.plots);
  function next() {
    const one = waiting.shift();
    if (!one) {
      document.documentElement.dataset.ready = "yes";
      reveal();
      if (data.version !== null) watch();
      return;
    }
    const place = document.getElementById(one[0]);
    if (place) draw(place, one[1]);
    setTimeout(next, 0);
  }
  next();
})();
