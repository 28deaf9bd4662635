"use strict";
// Chooses a period of a chart, by pointer or keys, and opens the list of its jobs. A range input lies
// over each chart; the table below the chart has the numbers.
(() => {
  const MOVES = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, Home: -Infinity, End: Infinity };
  const chosen = new WeakMap(); // the first and the last step that are chosen on a chart
  let dragged = null;

  const periodOf = (input) => chosen.get(input) ?? [Number(input.value), Number(input.value)];
  const within = (input, step) => Math.max(0, Math.min(Number(input.max), step));
  const brushOf = (event) => event.target.closest?.(".brush");

  function stepAt(input, event) {
    const box = input.getBoundingClientRect();
    return within(input, Math.floor((event.clientX - box.left) / box.width * (Number(input.max) + 1)));
  }

  const startOf = (input, step) => new Date(1000 * (Number(input.dataset.begin) + step * Number(input.dataset.step)));

  function timeOf(input, step) {
    const form = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
    if (Number(input.dataset.step) > 3600) form.weekday = "short";
    try {
      return startOf(input, step).toLocaleString("en-GB", { ...form, timeZone: input.dataset.zone });
    } catch { // the zone has no name that browsers know
      return startOf(input, step).toLocaleString("en-GB", { ...form, timeZone: "UTC" });
    }
  }

  function wordsFor(input, first, last) {
    if (first !== last) return `${timeOf(input, first)} to ${timeOf(input, last + 1)}`;
    const chart = input.closest(".chart");
    const row = chart.querySelector(`tr[data-step="${first}"]`);
    if (!row) return `${timeOf(input, first)}: nothing`;
    const [head, ...cells] = [...row.children].map((cell) => cell.textContent);
    const [, ...names] = [...chart.querySelectorAll("thead th")].map((cell) => cell.textContent);
    return `${head}: ${cells.map((cell, at) => `${names[at].toLowerCase()} ${cell}`).join(", ")}`;
  }

  function show(input, period) {
    const [first, last] = period.toSorted((one, other) => one - other);
    const share = 100 / (Number(input.max) + 1);
    const rect = input.closest(".field").querySelector(".chosen rect");
    rect.setAttribute("x", `${first * share}%`);
    rect.style.width = `${(last - first + 1) * share}%`;
    const words = wordsFor(input, first, last);
    input.closest(".chart").querySelector(".readout").textContent = words;
    input.setAttribute("aria-valuetext", words);
  }

  function hide(input) {
    chosen.delete(input);
    input.closest(".field").querySelector(".chosen rect").style.width = 0;
    input.closest(".chart").querySelector(".readout").textContent = "";
  }

  function open(input) {
    const [first, last] = periodOf(input).toSorted((one, other) => one - other);
    const address = new URL(input.dataset.jobs, location.href);
    const text = (step) => startOf(input, step).toISOString().replace(".000Z", "Z");
    address.searchParams.set("since", text(first));
    address.searchParams.set("until", text(last + 1));
    location.assign(address);
  }

  document.addEventListener("pointerdown", (event) => {
    const input = brushOf(event);
    if (!input || event.button) return;
    event.preventDefault();
    input.focus({ preventScroll: true, focusVisible: false });
    dragged = input;
    const step = stepAt(input, event);
    chosen.set(input, [step, step]);
    show(input, [step, step]);
  });
  document.addEventListener("pointermove", (event) => {
    const input = dragged ?? brushOf(event);
    if (!input) return;
    const step = stepAt(input, event);
    if (dragged) chosen.set(input, [periodOf(input)[0], step]);
    show(input, dragged ? periodOf(input) : [step, step]);
  });
  document.addEventListener("pointerup", () => {
    if (dragged) open(dragged);
    dragged = null;
  });
  for (const kind of ["pointercancel", "pointerout", "focusout"]) {
    document.addEventListener(kind, (event) => {
      const input = brushOf(event);
      if (!input || dragged && kind === "pointerout") return;
      dragged = null;
      hide(input);
    });
  }
  document.addEventListener("focusin", (event) => {
    const input = brushOf(event);
    if (input && !dragged) show(input, periodOf(input));
  });
  document.addEventListener("keydown", (event) => {
    const input = brushOf(event);
    if (!input || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Enter") {
      open(input);
    } else if (event.key === "Escape") {
      dragged = null;
      hide(input);
    } else if (event.key in MOVES) {
      event.preventDefault();
      const [first, last] = periodOf(input);
      const step = within(input, last + MOVES[event.key]);
      input.value = step;
      chosen.set(input, [event.shiftKey ? first : step, step]);
      show(input, periodOf(input));
    }
  });
})();
