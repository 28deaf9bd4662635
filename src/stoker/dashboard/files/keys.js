"use strict";
// Moves through the dashboard by the keyboard: see the dialog that "?" opens. Each key presses what
// is on the page anyway. Keys are left alone in fields, with Ctrl, Alt or Meta, and if the user has
// turned them off.
(() => {
  const GO_MS = 1500; // how long "g" waits for the next key
  const STORED = "stoker-keys";
  const FIELDS = "input, textarea, select, [contenteditable]";
  const stored = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
  const store = (name, value) => { try { localStorage.setItem(name, value); } catch { /* no matter */ } };
  let isOn = stored(STORED) !== "off";
  let goUntil = 0;

  const isField = (node) => node.matches?.(FIELDS) && node.type !== "checkbox";

  // The links that open the lines of all lists on the page.
  const lines = () => [...document.querySelectorAll("main tbody tr")]
    .map((row) => row.querySelector("a[href]"))
    .filter((link) => link?.offsetParent);

  function move(step) {
    const links = lines();
    const at = links.findIndex((link) => link.closest("tr").contains(document.activeElement));
    const link = links[at < 0 ? (step > 0 ? 0 : links.length - 1) : at + step];
    link?.focus();
    link?.scrollIntoView({ block: "nearest" });
  }

  function press(node) {
    node?.click();
    return Boolean(node);
  }

  function focusSearch() {
    const field = document.querySelector("main input[type=search]");
    field?.focus();
    field?.select();
    return Boolean(field);
  }

  const help = () => document.getElementById("keys");
  const keys = {
    "/": focusSearch,
    "?": () => { help().showModal(); return true; },
    j: () => { move(1); return true; },
    k: () => { move(-1); return true; },
    x: () => press(document.activeElement?.closest("tr")?.querySelector("input[type=checkbox]")),
    n: () => press(document.querySelector("nav.pages a[rel=next]")),
    g: () => { goUntil = Date.now() + GO_MS; return true; },
  };

  function go(key) {
    const link = document.querySelector(`nav a[data-go="${CSS.escape(key)}"]`);
    return press(link);
  }

  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing || event.ctrlKey || event.altKey || event.metaKey) return;
    if (!isOn || document.querySelector("dialog[open]") || isField(event.target)) return;
    const isGo = Date.now() < goUntil;
    goUntil = 0;
    const isDone = isGo ? go(event.key) : keys[event.key]?.();
    if (isDone) event.preventDefault();
  });

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("show-keys");
    if (button) {
      button.hidden = false;
      button.addEventListener("click", () => help().showModal());
    }
    const choice = document.getElementById("use-keys");
    if (!choice) return;
    choice.checked = isOn;
    choice.addEventListener("change", () => {
      isOn = choice.checked;
      store(STORED, isOn ? "on" : "off");
    });
  });
})();
