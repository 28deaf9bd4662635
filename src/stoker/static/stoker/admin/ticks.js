/* The box at the head of a list ticks all of its page. Without this, it stays hidden. */
"use strict";

for (const all of document.querySelectorAll("[data-ticks]")) {
  const boxes = [...all.form.querySelectorAll(`input[name="${all.dataset.ticks}"]`)];
  all.hidden = boxes.length === 0;
  all.addEventListener("change", () => {
    for (const box of boxes) box.checked = all.checked;
  });
  for (const box of boxes) {
    box.addEventListener("change", () => {
      all.checked = boxes.every((one) => one.checked);
    });
  }
}
