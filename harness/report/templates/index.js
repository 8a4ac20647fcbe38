"use strict";
// Sorting and filtering of the table; the page says the same without.
{
  const table = document.getElementById("comparisons");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const search = document.getElementById("words");
  const verdict = document.getElementById("verdict");
  const shown = document.getElementById("shown");
  const filter = () => {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const fits = wanted.every((word) => text.includes(word)) && (!verdict.value || row.dataset.word === verdict.value);
      row.hidden = !fits;
      count += fits;
    }
    shown.textContent = `${count} of ${rows.length}`;
  };
  const key = (row, column) => {
    const cell = row.cells[column];
    return cell ? cell.dataset.key ?? cell.textContent : "";
  };
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      rows.sort((a, b) => key(a, column).localeCompare(key(b, column), "en", { numeric: true }) * (down ? -1 : 1));
      body.replaceChildren(...rows);
    });
  });
  document.querySelector("form.filter").hidden = false;
  search.addEventListener("input", filter);
  verdict.addEventListener("input", filter);
  document.querySelector("form.filter").addEventListener("submit", (event) => event.preventDefault());
  filter();
}
