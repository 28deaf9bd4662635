"use strict";
// Lets a page of the dashboard follow what happens: told by the server that something has changed,
// it fetches the page again and changes what differs, in place. Without this script everything
// works, but for that.
(() => {
  const POLL_MS = 2000;
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
    if (isBusy(old)) return;
    const mine = old.nodeName === "DETAILS" ? ["open"] : old.nodeName === "INPUT" ? ["value", "checked"] : [];
    if (old.type === "hidden") mine.length = 0;
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && !mine.includes(name)) old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (!mine.includes(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    becomeInside(old, fresh);
  }

  function becomeInside(old, fresh) {
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

  async function refresh() {
    if (isPaused || document.hidden || isSelecting() || isFetching) {
      isStale = true;
      return;
    }
    isFetching = true;
    isStale = false;
    try {
      const answer = await fetch(location.href, { headers: { "X-Stoker-Live": "1" }, redirect: "manual" });
      if (answer.type === "opaqueredirect") { location.reload(); return; }
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of document.querySelectorAll("[data-live]")) {
        const wanted = fresh.getElementById(part.id);
        if (wanted) become(part, wanted);
      }
      say(answer.ok ? "live" : "broken");
    } catch {
      say("broken");
    } finally {
      isFetching = false;
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
    // A browser has few connections to a site: a page that nobody sees takes none of them.
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
    }

    document.addEventListener("change", (event) => {
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
