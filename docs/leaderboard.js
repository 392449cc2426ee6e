// Sorting and filtering of the table of leaderboard.md. The page works without it.

(() => {
  "use strict";
  const SELECTED = { protocol: "protocol", status: "status" };

  // Material for MkDocs replaces the content of a page without loading it again.
  const start = () => {
    const filters = document.getElementById("leaderboard-filters");
    document.body.classList.toggle("leaderboard-page", Boolean(filters));
    if (!filters || filters.childElementCount) return;
    const table = nextTable(filters);
    if (table) enhance(filters, table);
  };

  const nextTable = (element) =>
    [...document.querySelectorAll("table")].find(
      (table) => element.compareDocumentPosition(table) & Node.DOCUMENT_POSITION_FOLLOWING,
    );

  const enhance = (filters, table) => {
    const heads = [...table.tHead.rows[0].cells];
    const names = heads.map((head) => head.textContent.trim());
    const rows = [...table.tBodies[0].rows];
    table.id = "leaderboard";
    const controls = buildControls(filters, names, rows);
    const update = () => {
      const wanted = readControls(controls);
      let shown = 0;
      for (const row of rows) {
        row.hidden = !matches(row, names, wanted);
        shown += row.hidden ? 0 : 1;
      }
      controls.count.textContent = `${shown} of ${rows.length} lines`;
    };
    for (const input of controls.inputs) input.addEventListener("input", update);
    heads.forEach((head, column) => makeSortable(table, rows, head, column));
    update();
  };

  // One labelled input after the other, in the order in which they are read.
  const buildControls = (filters, names, rows) => {
    const controls = { inputs: [] };
    const add = (name, input) => {
      const label = document.createElement("label");
      label.append(`${name} `, input);
      filters.append(label);
      controls[name] = input;
      controls.inputs.push(input);
    };
    const search = document.createElement("input");
    search.type = "search";
    search.placeholder = "name of a model";
    add("model", search);
    const tasks = ["ListOps", "Text", "Retrieval", "Image", "Pathfinder", "Path-X"];
    add("task", select(tasks));
    for (const [name, column] of Object.entries(SELECTED)) {
      const values = rows.map((row) => row.cells[names.indexOf(column)].textContent.trim());
      add(name, select([...new Set(values)].sort()));
    }
    const since = document.createElement("input");
    since.type = "number";
    since.min = "2017";
    since.placeholder = "2017";
    add("since", since);
    controls.count = document.createElement("output");
    filters.append(controls.count);
    return controls;
  };

  const select = (values) => {
    const element = document.createElement("select");
    for (const value of ["", ...values]) {
      const option = document.createElement("option");
      option.value = value;
      option.textContent = value || "all";
      element.append(option);
    }
    return element;
  };

  const readControls = (controls) => ({
    model: controls.model.value.trim().toLowerCase(),
    task: controls.task.value,
    protocol: controls.protocol.value,
    status: controls.status.value,
    since: Number(controls.since.value) || 0,
  });

  const matches = (row, names, wanted) => {
    const text = (name) => row.cells[names.indexOf(name)].textContent.trim();
    if (!text("model").toLowerCase().includes(wanted.model)) return false;
    if (wanted.task && !text(wanted.task)) return false;
    if (wanted.since && !(Number(text("year")) >= wanted.since)) return false;
    return Object.entries(SELECTED).every(([name, column]) => !wanted[name] || text(column) === wanted[name]);
  };

  // A click sorts numbers descending and words ascending, the next one reverses that, the third one restores the order
  // of the page.
  const makeSortable = (table, rows, head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const numeric = rows.some((row) => typeof keyOf(row.cells[column].textContent.trim()) === "number");
      const cycle = numeric ? ["none", "descending", "ascending"] : ["none", "ascending", "descending"];
      const order = cycle[(cycle.indexOf(head.getAttribute("aria-sort") || "none") + 1) % cycle.length];
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      if (order !== "none") head.setAttribute("aria-sort", order);
      const sorted = order === "none" ? rows : sortRows(rows, column, order === "ascending");
      table.tBodies[0].append(...sorted);
    });
  };

  // Cells without a value, FAIL among them in columns of numbers, stand last in both orders.
  const sortRows = (rows, column, ascending) => {
    const keys = new Map(rows.map((row) => [row, keyOf(row.cells[column].textContent.trim())]));
    const numeric = [...keys.values()].some((key) => typeof key === "number");
    const missing = (key) => key === "" || (numeric && typeof key !== "number");
    const sign = ascending ? 1 : -1;
    return [...rows].sort((a, b) => {
      const [x, y] = [keys.get(a), keys.get(b)];
      if (missing(x) || missing(y)) return Number(missing(x)) - Number(missing(y));
      if (typeof x === "number") return sign * (x - y);
      return sign * x.localeCompare(y, "en", { sensitivity: "base" });
    });
  };

  const keyOf = (text) => {
    const number = /^[+-]?\d+(\.\d+)?/.exec(text);
    return number && /^[+-]?\d+(\.\d+)?( ±.*)?( \(n = .*\))?$/.test(text) ? Number(number[0]) : text;
  };

  if (window.document$) window.document$.subscribe(start);
  else if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
