// Gradio serves every page as English; screen readers choose their voice by it. It says in English alone that the
// connection broke, from then on until the page comes back.
const brand = element.querySelector("h1");
document.documentElement.lang = brand.lang;
new MutationObserver(() => {
  const part = document.querySelector(".toast-body.error [data-testid=toast-text]");
  if (part?.textContent.startsWith("Connection to the server was lost")) part.textContent = brand.dataset.lost;
}).observe(document.body, { childList: true, subtree: true });
