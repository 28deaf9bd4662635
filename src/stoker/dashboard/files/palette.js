"use strict";
// The command palette: type a part of a name or paste an id, and go there. The server finds the
// entries and knows what the user may see. The key is left alone if the user has turned keys off.
(() => {
  const PAUSE_MS = 120; // between the last character and the question to the server
  const by = (id) => document.getElementById(id);
  const areKeysOn = () => { try { return localStorage.getItem("stoker-keys") !== "off"; } catch { return true; } };
  let asked = null;
  let timer = 0;
  let isGoing = false; // whether Enter was pressed before the answer came

  const options = () => [...by("palette-found").children];
  const chosen = () => options().findIndex((one) => one.getAttribute("aria-selected") === "true");

  function choose(at) {
    const all = options();
    all.forEach((one, place) => one.setAttribute("aria-selected", String(place === at)));
    const text = by("palette-text");
    if (all[at]) {
      text.setAttribute("aria-activedescendant", all[at].id);
      all[at].scrollIntoView({ block: "nearest" });
    } else {
      text.removeAttribute("aria-activedescendant");
    }
  }

  function show(entries, text = "") {
    const list = by("palette-found");
    list.dataset.text = text;
    list.replaceChildren(...entries.map(({ kind, title, address }, place) => {
      const option = document.createElement("li");
      option.id = `palette-${place}`;
      option.setAttribute("role", "option");
      option.dataset.address = address;
      for (const [name, text] of [["kind", kind], ["name", title]]) {
        const span = document.createElement("span");
        span.className = name;
        span.textContent = text;
        option.append(span);
      }
      return option;
    }));
    list.hidden = entries.length === 0;
    by("palette-text").setAttribute("aria-expanded", String(entries.length > 0));
    by("palette-says").textContent = entries.length === 0 ? "Nothing found." : `${entries.length} found.`;
    choose(0);
  }

  // Nothing that was found the last time may be chosen while the new answer is on its way.
  function forget() {
    const list = by("palette-found");
    delete list.dataset.text;
    list.replaceChildren();
    list.hidden = true;
    by("palette-text").removeAttribute("aria-activedescendant");
    by("palette-text").setAttribute("aria-expanded", "false");
    by("palette-says").textContent = "";
  }

  async function ask() {
    asked?.abort();
    const mine = asked = new AbortController();
    const address = new URL(by("palette").dataset.address, location.href);
    const text = by("palette-text").value;
    address.searchParams.set("q", text);
    try {
      const answer = await fetch(address, { signal: mine.signal, headers: { Accept: "application/json" } });
      if (!answer.ok) throw new Error(String(answer.status));
      show((await answer.json()).entries, text);
    } catch (error) {
      if (mine.signal.aborted) return;
      show([]);
      by("palette-says").textContent = "No answer.";
    } finally {
      if (asked === mine) asked = null;
      if (isGoing && !asked) go();
    }
  }

  function go(option = options()[chosen()]) {
    isGoing = false;
    if (option) location.assign(option.dataset.address);
  }

  function open() {
    const dialog = by("palette");
    if (dialog.open) return;
    isGoing = false;
    forget();
    dialog.showModal();
    by("palette-text").value = "";
    by("palette-text").focus();
    ask();
  }

  document.addEventListener("keydown", (event) => {
    const isKey = event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey;
    if (!isKey || !by("palette") || !areKeysOn() || document.querySelector("dialog[open]")) return;
    event.preventDefault();
    open();
  });

  document.addEventListener("DOMContentLoaded", () => {
    const button = by("show-palette");
    if (!button) return;
    button.hidden = false;
    button.addEventListener("click", open);
    by("palette").addEventListener("click", (event) => {
      const option = event.target.closest("[role=option]");
      if (option) go(option);
      else if (event.target === by("palette")) by("palette").close(); // the part outside of it
    });
    by("palette-text").addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => { timer = 0; ask(); }, PAUSE_MS);
    });
    by("palette-text").addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      const count = options().length;
      const moves = { ArrowDown: 1, ArrowUp: -1 };
      if (event.key in moves && count) choose((chosen() + moves[event.key] + count) % count);
      else if (event.key !== "Enter") return;
      else if (timer || asked) {
        isGoing = true;
        if (timer) { clearTimeout(timer); timer = 0; ask(); }
      } else go();
      event.preventDefault();
    });
  });
})();
