// The run's screen: which lines of the log are shown.
const level = element.querySelector("select[data-level]");

function filter() {
  const log = document.getElementById("run-log");
  if (log) log.dataset.level = level.value;
}

level.addEventListener("change", filter);
filter();
