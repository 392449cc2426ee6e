"use strict";

// Tables: a click on a head sorts by it, the next one the other way round, the third restores the order of print.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const printed = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.firstElementChild.addEventListener("click", () => {
      const numbers = head.classList.contains("number");
      const cycle = numbers ? [null, "descending", "ascending"] : [null, "ascending", "descending"];
      const next = cycle[(cycle.indexOf(head.getAttribute("aria-sort")) + 1) % cycle.length];
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      if (next) head.setAttribute("aria-sort", next);
      const sign = next === "descending" ? -1 : 1;
      body.append(...(next ? [...printed].sort((a, b) => order(a.cells[column], b.cells[column], sign)) : printed));
    });
  });
}

// Cells without a value come last in both directions.
function order(a, b, sign) {
  const [x, y] = [a, b].map((cell) => ("value" in cell.dataset ? Number(cell.dataset.value) : null));
  if (x !== null && y !== null) return sign * (x - y);
  if (x !== null || y !== null) return x !== null ? -1 : 1;
  const [s, t] = [a.textContent.trim(), b.textContent.trim()];
  if (!s || !t) return (s ? 0 : 1) - (t ? 0 : 1);
  return sign * s.localeCompare(t);
}

// One filter for the page: words of mechanisms, and a study. A published line belongs to every study.
const words = document.getElementById("filter");
const study = document.getElementById("study");

function filter() {
  const wanted = words.value.toLowerCase().split(/[\s,]+/).filter(Boolean);
  const named = (text) => !wanted.length || wanted.some((word) => text.toLowerCase().includes(word));
  const chosen = (element) => !study || !study.value || !element.dataset.study || element.dataset.study === study.value;
  let shown = 0;
  for (const element of document.querySelectorAll("[data-match]")) {
    element.hidden = !(named(element.dataset.match) && chosen(element));
    shown += !element.hidden;
  }
  for (const element of document.querySelectorAll(".series[data-label], .key button")) {
    if (element.closest("#runs")) continue; // labels are seeds there
    element.classList.toggle("filtered", !named(element.dataset.label));
  }
  for (const element of document.querySelectorAll("article[data-study]")) element.hidden = !chosen(element);
  document.getElementById("nothing").hidden = shown > 0;
}
words.addEventListener("input", filter);
study?.addEventListener("change", filter);
words.form.addEventListener("submit", (event) => event.preventDefault());

// Keys of charts: pointing at one shows its series alone, a click takes it away and brings it back.
for (const key of document.querySelectorAll(".key")) {
  const charts = key.nextElementSibling;
  for (const button of key.children) {
    const mine = [...charts.querySelectorAll("g.series")].filter((g) => g.dataset.label === button.dataset.label);
    const point = (on) => () => {
      // A label without a visible series cannot stand out.
      const stands = on && mine.some((g) => !g.classList.contains("off"));
      charts.classList.toggle("pointing", stands);
      mine.forEach((g) => g.classList.toggle("pointed", stands));
    };
    button.addEventListener("pointerenter", point(true));
    button.addEventListener("pointerleave", point(false));
    button.addEventListener("focus", point(true));
    button.addEventListener("blur", point(false));
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", on);
      mine.forEach((g) => g.classList.toggle("off", !on));
      point(true)();
    });
  }
}

// A link to a run opens it.
function open() {
  let target = null;
  try {
    target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  } catch (error) {
    if (!(error instanceof URIError)) throw error;
  }
  if (target instanceof HTMLDetailsElement) target.open = true;
}
window.addEventListener("hashchange", open);
// The same link once more changes no hash.
for (const link of document.querySelectorAll('a[href^="#run"]')) link.addEventListener("click", () => setTimeout(open));
open();
filter();
