// Shows the name of the file above each block that is one: ```python file=producer.py
for (const code of document.querySelectorAll("pre code")) {
    const name = [...code.classList].map((word) => /file=([^,\s]+)/.exec(word)).find(Boolean);
    if (name && !code.textContent.split("\n", 1)[0].includes(name[1])) {
        const label = document.createElement("p");
        label.className = "file-name";
        label.textContent = name[1];
        code.closest("pre").before(label);
    }
}

// Gives each cell its column's name, which narrow windows show in front of it.
for (const table of document.querySelectorAll(".content table")) {
    const columns = [...table.querySelectorAll("thead th")].map((column) => column.textContent.trim());
    for (const row of table.querySelectorAll("tbody tr")) {
        [...row.cells].forEach((cell, at) => {
            if (columns[at]) {
                cell.dataset.column = columns[at];
            }
        });
    }
}

// A click on the name of a group of pages folds or unfolds it, as its arrow does.
document.addEventListener("click", ({ target }) => {
    target.closest?.(".chapter-link-wrapper > span")?.parentElement.querySelector(".chapter-fold-toggle")?.click();
});
