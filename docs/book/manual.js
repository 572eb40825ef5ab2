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
