// What belongs to the page as a whole: moving between tabs and to a field, its address, its title, keys, questions.
() => {
  const TABS = ["home", "model", "dataset", "hyperparameters", "training", "chat", "export", "runs", "doctor", "settings"];
  const button = (name) => document.getElementById(`tab-${name}-button`);
  const words = () => document.getElementById("page-words")?.dataset || {};
  const chosen = () => TABS.find((name) => button(name)?.classList.contains("selected")) || "home";
  let address = new URLSearchParams(location.search);
  let chosenRun = "";

  // `run` is what the tab that opens is to show. Chat and Export take it once, as they open; other tabs take none.
  function go(name, run = "") {
    const part = button(name);
    if (!part) return false;
    chosenRun = name === "chat" || name === "export" ? run : "";
    if (name === "training" && run) window.studioRun?.show(run);
    const pressed = document.activeElement;
    part.click();
    // What was pressed may be gone with its tab: the keys go on from the tab that opened.
    if (pressed !== document.body) setTimeout(() => { if (!pressed.checkVisibility()) part.focus({ preventScroll: true }); });
    scrollTo(0, 0);
    centre(part);
    return true;
  }

  // On a phone the row of tabs is longer than the screen; turning it there and back leaves the row somewhere else.
  function centre(part) {
    const row = part.parentElement;
    const [inner, outer] = [part.getBoundingClientRect(), row.getBoundingClientRect()];
    row.scrollLeft += inner.left + inner.width / 2 - outer.left - outer.width / 2;
  }
  addEventListener("resize", () => { const part = button(chosen()); if (part) centre(part); });

  // One question with two answers; Escape is no. Returns a promise of the answer.
  function confirm(question, yes) {
    const dialog = document.createElement("dialog");
    dialog.className = "question-box";
    const text = document.createElement("p");
    text.textContent = question;
    const row = document.createElement("div");
    const answers = [[words().cancel || "", "no"], [yes, "yes"]].map(([label, value]) => {
      const one = document.createElement("button");
      one.textContent = label;
      one.className = `say ${value === "yes" ? "primary" : ""}`;
      one.onclick = () => dialog.close(value);
      return one;
    });
    row.append(...answers);
    dialog.append(text, row);
    (document.querySelector(".gradio-container") || document.body).append(dialog);
    dialog.showModal();
    return new Promise((done) => {
      dialog.onclose = () => { dialog.remove(); done(dialog.returnValue === "yes"); };
    });
  }

  // The page of a studio that starts anew comes back by itself once that answers; 401 asks a known browser to log in again.
  let returning = false;
  async function returnLater() {
    if (returning) return;
    returning = true;
    for (let tries = 0, gone = false; gone || tries < 1200; tries += 1) {
      await new Promise((done) => setTimeout(done, 500));
      const status = await fetch("/ready", { cache: "no-store" }).then((answer) => answer.status, () => 0);
      const there = status === 204 || status === 401;
      if (gone && there) return location.reload();
      gone ||= !there && status !== 429;
    }
    returning = false; // it was refused
  }

  document.addEventListener("click", (event) => {
    if (event.target.closest('[data-do="restart"], #doctor-restart, #doctor-wsl-yes')) returnLater();
  });

  // Gradio closes a list whose field is left by the mouse, not by Tab: it covered what is below, and other tabs.
  document.addEventListener("focusout", ({ target }) => setTimeout(() => {
    const open = target.matches?.('input[role="combobox"][aria-expanded="true"]');
    if (open && document.activeElement !== target) target.dispatchEvent(new FocusEvent("blur"));
  }));

  // The address names the tab and, where a run is on show, the run: a reload or a bookmark comes back to it.
  function remember() {
    const tab = chosen();
    const place = { chat: "#chat-state", export: "#export-targets" }[tab] || "#run-status";
    const run = document.querySelector(`${place} [data-run]`)?.dataset.run || address.get("run") || "";
    const next = new URLSearchParams({ tab });
    if (run && (tab === "training" || tab === "chat" || tab === "export")) next.set("run", run);
    if (next.toString() === address.toString()) return;
    address = next;
    history.replaceState(null, "", `${location.pathname}?${next}`);
  }

  // The title shows how far the run is, that it is paused, or that nobody answers.
  function tellRun() {
    const chip = document.querySelector("#run-chip .chip");
    if (!chip) return;
    const head = document.body.dataset.away === "yes" ? words().silent : chip.dataset.head;
    document.title = (head ? `${head} · ` : "") + "Finetune Studio";
  }

  // A step of the four that is settled is marked, in words for those who do not see the mark.
  function markTabs() {
    const done = (document.querySelector("#run-card-body [data-done]")?.dataset.done || "").split(" ");
    for (const name of TABS.slice(1, 5)) {
      const part = button(name);
      if (!part) continue;
      const settled = done.includes(name);
      if (part.classList.contains("done") === settled) continue;
      part.classList.toggle("done", settled);
      if (settled) part.setAttribute("aria-description", words().done || ""); else part.removeAttribute("aria-description");
    }
  }

  // What the keys go to in a field: itself, not the help that stands above it.
  function inputOf(field) {
    const inputs = [...field.querySelectorAll("input, textarea, select")];
    return inputs.find((one) => !one.disabled && one.checkVisibility()) || field.querySelector("button");
  }

  // The field may lie in a fold that is closed: it is laid open. It is not there at all while its tab or its fold was
  // never open: it is waited for, and after a while looked for in the tab's folds.
  function mark(tab, id) {
    let tries = 0;
    const timer = setInterval(() => {
      const field = document.getElementById(id);
      if (++tries > 60) return clearInterval(timer);
      if (!field) {
        if (tries % 10 === 0) document.querySelector(`#tab-${tab} .label-wrap:not(.open)`)?.click();
        return;
      }
      for (let part = field; part; part = part.parentElement) {
        if (part.tagName === "DETAILS") part.open = true;
        part.querySelector(":scope > .label-wrap:not(.open)")?.click();
      }
      if (!field.offsetParent) return;
      clearInterval(timer);
      document.querySelectorAll(".marked").forEach((one) => one.classList.remove("marked"));
      field.classList.add("marked");
      field.scrollIntoView({ block: "center", behavior: "auto" });
      inputOf(field)?.focus({ preventScroll: true });
      field.addEventListener("input", () => field.classList.remove("marked"), { once: true });
    }, 50);
  }

  document.addEventListener("click", (event) => {
    const part = event.target.closest("[data-go]");
    if (part) go(part.dataset.go, part.dataset.runChoice || "");
    if (part?.dataset.mark) mark(part.dataset.go, part.dataset.mark);
    if (event.target.closest("#run-start, #run-queue-add") && window.Notification?.permission === "default") Notification.requestPermission();
  });

  // A bar of tabs is one stop of the Tab key; the arrows go along it, as in any program.
  function joinTabs() {
    document.querySelectorAll("[role=tab]").forEach((one) => {
      const stop = one.getAttribute("aria-selected") === "true" ? 0 : -1;
      if (one.tabIndex !== stop) one.tabIndex = stop;
    });
  }

  // Gradio gives each radio button a name of its own, by which a browser takes none of them for a group.
  function companions(part) {
    if (part.getAttribute("role") === "tab") return [...part.parentElement.querySelectorAll("[role=tab]:not(:disabled)")];
    const all = part.type === "radio" ? [...(part.closest("fieldset")?.querySelectorAll("input[type=radio]:not(:disabled)") || [])] : [];
    return new Set(all.map((one) => one.name)).size === all.length ? all : [];
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const all = companions(event.target);
    const now = all.indexOf(event.target);
    const [after, before] = [all[now + 1] || all[0], all.at(now - 1)];
    const steps = { ArrowRight: after, ArrowLeft: before, Home: all[0], End: all.at(-1) };
    if (event.target.type === "radio") Object.assign(steps, { ArrowDown: after, ArrowUp: before });
    const next = now < 0 ? null : steps[event.key];
    if (!next) return;
    event.preventDefault();
    next.focus();
    next.click();
  });

  document.addEventListener("keydown", (event) => {
    const start = document.getElementById("run-start");
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && start?.offsetParent) { event.preventDefault(); start.click(); }
    if (event.key === "Escape") document.querySelector(".toast-close")?.click();
  });

  function takeRun() {
    const run = chosenRun;
    chosenRun = "";
    return run;
  }

  window.studio = { go, takeRun, confirm, returnLater };
  const wanted = address.get("tab");
  const waiting = setInterval(() => {
    if (!button("settings")) return;
    clearInterval(waiting);
    if (TABS.includes(wanted) && wanted !== chosen()) go(wanted);
    new MutationObserver(() => { remember(); tellRun(); markTabs(); joinTabs(); }).observe(document.body, {
      subtree: true, childList: true, attributes: true, attributeFilter: ["class", "data-run", "data-done", "data-head", "data-state", "data-away"],
    });
    remember(); tellRun(); markTabs(); joinTabs();
    document.body.dataset.ready = "yes";
  }, 50);
}
