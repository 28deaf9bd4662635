/* The form of a schedule: shows the fields that its kind has, and what they mean while they are
   being filled in. */
"use strict";

(() => {
  const PAUSE_MS = 300;
  const FIELDS = {cron: ["expression"], interval: ["count", "unit"], once: ["at"]};
  const form = document.querySelector("form[data-preview]");
  const words = document.getElementById("preview-words");
  const next = document.getElementById("preview-next");
  const problems = document.getElementById("preview-problems");
  let timer = 0;
  let asked = 0;

  const list = (element, texts) => {
    element.replaceChildren(...texts.map((text) => {
      const item = document.createElement("li");
      item.textContent = text;
      return item;
    }));
    element.hidden = texts.length === 0;
  };

  const showFields = () => {
    const kind = form.elements.kind.value;
    for (const [one, names] of Object.entries(FIELDS)) {
      for (const name of names) {
        form.querySelector(`[data-field="${name}"]`).hidden = one !== kind;
      }
    }
  };

  const preview = async () => {
    const number = ++asked;
    const answer = await fetch(form.dataset.preview, {method: "POST", body: new FormData(form)});
    if (number !== asked || !answer.ok) return;
    const told = await answer.json();
    words.textContent = told.words || "";
    list(next, told.next || []);
    list(problems, told.problems);
  };

  const later = () => {
    showFields();
    clearTimeout(timer);
    timer = setTimeout(preview, PAUSE_MS);
  };

  form.addEventListener("input", later);
  showFields();
  if (form.elements.name.value) later();  // in an empty form nothing is wrong yet
})();
