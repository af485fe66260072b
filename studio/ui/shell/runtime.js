// What the scripts of several screens do alike. It stands in front of each script that uses it: a component's script may
// run before that of the page (page.js).
const runtime = (window.studioRuntime ??= (() => {
  // Calls `act(part, event)` for each `kind` of event at a part below `root` that fits `selector`.
  function on(root, kind, selector, act) {
    root.addEventListener(kind, (event) => {
      const part = event.target.closest?.(selector);
      if (part && root.contains(part)) act(part, event);
    });
  }

  // What has the focus keeps it when its card is drawn anew: parts are known by their data-focus. `settle` is called
  // after each change below `screen`, and before the focus is looked for; `observed` are further changes to look at.
  function keepFocus(screen, { settle = () => {}, isLost = () => document.activeElement === document.body, find, observed = {} } = {}) {
    const named = (name) => screen.querySelector(`[data-focus="${CSS.escape(name)}"]`);
    let focused = "";
    screen.addEventListener("focusin", (event) => { focused = event.target.dataset?.focus || ""; });
    // A press beside it says that the person is elsewhere: the next space key must not press what had the focus.
    document.addEventListener("pointerdown", (event) => { if (!event.target.closest?.("[data-focus]")) focused = ""; }, true);
    new MutationObserver(() => {
      settle();
      if (focused && isLost(focused)) (find ? find(focused, named) : named(focused))?.focus({ preventScroll: true });
    }).observe(screen, { childList: true, subtree: true, ...observed });
  }

  // Returns what tells the server something by a component's event `said`, each time with another number.
  function teller(props, trigger) {
    let number = 0;
    return (detail) => {
      props.value = { ...detail, number: ++number };
      trigger("said");
    };
  }

  return { on, keepFocus, teller };
})());
