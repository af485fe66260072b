// Tells an open page that the studio was opened once more: it takes over what is set there when one comes back to it.
const bar = element.querySelector(".second-window");
const channel = new BroadcastChannel("finetune-studio");

channel.onmessage = ({ data }) => {
  if (data !== "opened") return;
  bar.hidden = false;
  window.focus();
};
channel.postMessage("opened");
bar.querySelector('[data-part="reload"]').addEventListener("click", () => location.reload());
bar.querySelector('[data-part="hide"]').addEventListener("click", () => { bar.hidden = true; });
