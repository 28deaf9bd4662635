/* Parts of a page that are asked for once the page is shown. Without this, there is a link. */
"use strict";

for (const place of document.querySelectorAll("[data-part]")) {
  const address = new URL(place.dataset.part, location.href);
  address.searchParams.set("part", "1");
  fetch(address).then(async (answer) => {
    if (answer.ok) place.innerHTML = await answer.text();
  });
}
