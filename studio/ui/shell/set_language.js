// Gradio serves every page as English; screen readers choose their voice by it. It says in English alone that the
// connection broke, from then on until the page comes back, and that a file is of another kind.
const brand = element.querySelector("h1");
document.documentElement.lang = brand.lang;
new MutationObserver(() => {
  const part = document.querySelector(".toast-body.error [data-testid=toast-text]");
  const kind = part?.textContent.match(/^Invalid file type: (.+?)\.? Only (.+) allowed/s);
  if (kind) part.textContent = brand.dataset.kind.replace("{name}", () => kind[1]).replace("{kinds}", () => kind[2]);
  if (part?.textContent.startsWith("Connection to the server was lost")) part.textContent = brand.dataset.lost;
}).observe(document.body, { childList: true, subtree: true });
