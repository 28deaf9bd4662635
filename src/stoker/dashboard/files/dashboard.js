"use strict";
// Lets a page of the dashboard follow what happens: told by the server that something has changed,
// it fetches the parts that differ and changes them in place. Rows keep their places: those of lists
// until the user asks for the new ones, others while the pointer is on them. Without this script
// everything works, but for that.
(() => {
  const POLL_MS = 2000;
  const BYTES_A_SECOND = 1400; // what a page fetches at most, so that a tab costs 84 KB a minute
  const BYTES_OF_HEADERS = 1000;
  const root = document.documentElement;
  root.dataset.js = "";
  const stored = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
  const store = (name, value) => { try { localStorage.setItem(name, value); } catch { /* no matter */ } };

  // -- dark and light: before anything is painted ------------------------------------------------
  const chosen = stored("stoker-theme");
  if (chosen) root.dataset.theme = chosen;
  const isDark = () => root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;

  // -- change in place ----------------------------------------------------------------------------
  const keyOf = (node) => node.nodeType === 1 ? node.id || node.dataset.key || "" : "";
  const isBusy = (node) => node === document.activeElement && /^(INPUT|TEXTAREA|SELECT)$/.test(node.nodeName);

  function become(old, fresh) {
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
      old.replaceWith(document.importNode(fresh, true));
      return;
    }
    if (old.nodeType !== 1) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    if (isBusy(old) && old.type !== "range" || "own" in old.dataset) return;
    const mine = old.nodeName === "DETAILS" ? ["open"] : old.nodeName === "INPUT" ? ["value", "checked", "aria-valuetext"] : [];
    if (old.type === "hidden") mine.length = 0;
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && !mine.includes(name)) old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (!mine.includes(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    becomeInside(old, fresh);
  }

  // Rows that must not move: the others are counted, or come once the pointer has left.
  const isHeld = (body) => body.firstElementChild?.dataset.key
    && (body.closest("[data-hold]") || body.matches(":hover, :focus-within"));
  let newRows = 0;
  let heldParts = false;

  function becomeHeld(old, fresh) {
    const wanted = new Map();
    for (const row of fresh.children) wanted.set(keyOf(row), row);
    let known = 0;
    for (const row of old.children) {
      const same = wanted.get(keyOf(row));
      row.classList.toggle("gone", !same);
      if (!same) continue;
      known += 1;
      become(row, same);
    }
    const unknown = wanted.size - known;
    if (old.closest("[data-hold]")) newRows += unknown;
    if (unknown || known < old.children.length) heldParts = true;
  }

  function becomeInside(old, fresh) {
    if (!mayMove && old.nodeName === "TBODY" && isHeld(old)) {
      becomeHeld(old, fresh);
      return;
    }
    const known = new Map();
    for (const child of old.childNodes) if (keyOf(child)) known.set(keyOf(child), child);
    let at = old.firstChild;
    for (const wanted of [...fresh.childNodes]) {
      const key = keyOf(wanted);
      const same = key ? known.get(key) : at && !keyOf(at) ? at : null;
      if (!same) {
        old.insertBefore(document.importNode(wanted, true), at);
        continue;
      }
      known.delete(key);
      if (same === at) at = at.nextSibling;
      else old.insertBefore(same, at);
      become(same, wanted);
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  const isSelecting = () => {
    const selection = getSelection();
    return Boolean(selection && !selection.isCollapsed);
  };

  // -- following ----------------------------------------------------------------------------------
  let word = "";
  let isPaused = stored("stoker-live") === "off";
  let isFetching = false;
  let isStale = false;

  const digests = {};
  let wantsNew = false; // whether the user has asked for the new rows
  let mayMove = false; // whether what is shown now may move rows
  let restUntil = 0;

  async function refresh() {
    if (isPaused || document.hidden || isSelecting() || isFetching || Date.now() < restUntil) {
      isStale = true;
      return;
    }
    isFetching = true;
    isStale = false;
    mayMove = wantsNew;
    const headers = { "X-Stoker-Live": Object.entries(digests).map((pair) => pair.join("=")).join(",") || "-" };
    const first = mayMove ? null : document.querySelector("[data-hold] tbody tr[data-key]");
    if (first) headers["X-Stoker-First"] = first.dataset.key;
    try {
      const answer = await fetch(location.href, { headers, redirect: "manual" });
      if (answer.type === "opaqueredirect") { location.reload(); return; }
      const bytes = Number(answer.headers.get("Content-Length")) + BYTES_OF_HEADERS;
      restUntil = Date.now() + 1000 * bytes / BYTES_A_SECOND;
      setTimeout(() => { if (isStale) refresh(); }, restUntil - Date.now() + 10);
      const { parts, new: counted } = await answer.json();
      show(parts, counted);
      if (mayMove) wantsNew = false;
      say(answer.ok ? "live" : "broken");
    } catch {
      say("broken");
    } finally {
      isFetching = false;
    }
  }

  function show(parts, counted) {
    let count = counted;
    for (const part of document.querySelectorAll("[data-live]")) {
      const [digest, html] = parts[part.id] ?? [];
      if (!html) continue;
      const fresh = new DOMParser().parseFromString(html, "text/html").getElementById(part.id);
      if (!fresh) continue;
      newRows = 0;
      heldParts = false;
      become(part, fresh);
      if ("hold" in part.dataset && counted === null) count = newRows;
      if (heldParts) delete digests[part.id];
      else digests[part.id] = digest;
    }
    if (count !== null) showNewer(count);
  }

  function showNewer(count) {
    const button = document.getElementById("newer");
    if (!button) return;
    button.hidden = count === 0;
    button.textContent = `${count > 99 ? "99+" : count} new`;
  }

  // -- times pass ---------------------------------------------------------------------------------
  function since(moment) {
    const seconds = (Date.now() - new Date(moment)) / 1000;
    const size = Math.abs(seconds);
    if (size < 1) return "now";
    const text = size < 59.5 ? `${Math.round(size)} s`
      : size < 3570 ? `${Math.round(size / 60)} min`
      : size < 171000 ? `${Math.round(size / 3600)} h` : `${Math.round(size / 86400)} d`;
    return seconds > 0 ? `${text} ago` : `in ${text}`;
  }

  function age() {
    if (document.hidden || isPaused || isSelecting()) return;
    for (const one of document.querySelectorAll("[data-live] time")) {
      const text = since(one.dateTime);
      if (one.textContent !== text) one.textContent = text;
    }
  }

  function heard(fresh) {
    if (fresh !== word || isStale) refresh();
    word = fresh;
  }

  function say(state) {
    const button = document.getElementById("live");
    if (!button) return;
    button.dataset.state = isPaused ? "paused" : state;
    button.setAttribute("aria-pressed", String(!isPaused));
    button.querySelector("span").textContent =
      isPaused ? "Paused" : state === "broken" ? "No answer" : "Live";
  }

  async function ask(address) {
    try {
      const answer = await fetch(address, { headers: { Accept: "application/json" } });
      if (answer.status === 403) { location.reload(); return; }
      heard((await answer.json()).pulse);
    } catch {
      say("broken");
      isStale = true;
    }
  }

  function follow(address) {
    let events = null;
    let isPolling = false;
    const poll = () => {
      isPolling = true;
      root.dataset.follows = "by asking";
      setInterval(() => { if (!document.hidden && !isPaused) ask(address); }, POLL_MS);
    };
    const close = () => { events?.close(); events = null; };
    // Browsers limit the connections to one site, so a hidden page uses none.
    const open = () => {
      if (events || isPolling || document.hidden) return;
      events = new EventSource(address);
      events.onmessage = (event) => { root.dataset.follows = "by events"; heard(event.data); };
      events.onerror = () => {
        if (events?.readyState === EventSource.CLOSED) { close(); poll(); }
        else { say("broken"); isStale = true; }
      };
    };
    if (window.EventSource) open();
    else poll();
    addEventListener("pagehide", close);
    addEventListener("pageshow", open);
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) { close(); return; }
      open();
      if (isStale) refresh();
    });
  }

  // -- the page is there --------------------------------------------------------------------------
  document.addEventListener("DOMContentLoaded", () => {
    const theme = document.getElementById("theme");
    const showTheme = () => theme?.setAttribute("aria-pressed", String(isDark()));
    theme?.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      store("stoker-theme", root.dataset.theme);
      showTheme();
    });
    showTheme();

    const live = document.getElementById("live");
    live?.addEventListener("click", () => {
      isPaused = !isPaused;
      store("stoker-live", isPaused ? "off" : "on");
      say("live");
      if (!isPaused) refresh();
    });
    if (live) {
      live.hidden = false;
      say("live");
      follow(live.dataset.address);
      setInterval(age, 1000);
    }
    document.getElementById("newer")?.addEventListener("click", () => {
      wantsNew = true;
      restUntil = 0;
      for (const part of document.querySelectorAll("[data-hold]")) delete digests[part.id];
      refresh();
      showNewer(0);
    });

    const showKind = () => {  // of a schedule
      const form = document.querySelector("form[data-kinds]");
      for (const one of form?.querySelectorAll("[data-kind]") ?? []) one.hidden = one.dataset.kind !== form.elements.kind.value;
    };
    showKind();
    document.addEventListener("change", (event) => {
      showKind();
      if (event.target.matches("input[data-choose]")) {
        const boxes = document.querySelectorAll(`input[type=checkbox][name="${event.target.dataset.choose}"]`);
        for (const box of boxes) box.checked = event.target.checked;
      }
      const form = event.target.closest("form[data-at-once]");
      if (form) form.requestSubmit();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      const open = event.target.closest?.("details.ask[open]");
      if (open) { open.open = false; open.querySelector("summary").focus(); }
    });
    document.addEventListener("toggle", (event) => {
      if (event.target.matches?.("details.ask[open]")) {
        for (const other of document.querySelectorAll("details.ask[open]")) if (other !== event.target) other.open = false;
      }
    }, true);
  });
})();
