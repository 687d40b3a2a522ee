// How is the page written to? By text nodes and attributes only, never by markup: names and reasons are other people's.

export const byId = (id) => document.getElementById(id);

/** An element; `attributes` named class, data-… and the like, children are nodes, texts or nothing. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** Change a text only where it differs, so that screen readers are told of news and of nothing else. */
export function setText(id, text) {
  const element = byId(id);
  if (element.textContent !== text) element.textContent = text;
}

/** The rows of a table's body. Phones show each cell under its column's name, hence the roles and labels. */
export function setRows(id, rows) {
  const table = byId(id);
  const columns = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  table.tBodies[0].replaceChildren(...rows.map((cells) => row(cells, columns)));
}

function row(cells, columns) {
  const parts = cells.map((content, place) => {
    const attributes = { "data-label": columns[place] };
    const children = Array.isArray(content) ? content : [content];
    return place === 0
      ? el("th", { scope: "row", role: "rowheader", ...attributes }, ...children)
      : el("td", { role: "cell", ...attributes }, ...children);
  });
  return el("tr", { role: "row" }, ...parts);
}

/** Explicit roles keep a table a table where its rows are laid out as cards. */
export function keepTables() {
  for (const table of document.querySelectorAll("table")) {
    table.setAttribute("role", "table");
    table.tHead.setAttribute("role", "rowgroup");
    table.tBodies[0].setAttribute("role", "rowgroup");
    table.tHead.rows[0].setAttribute("role", "row");
    for (const cell of table.tHead.rows[0].cells) cell.setAttribute("role", "columnheader");
  }
}
