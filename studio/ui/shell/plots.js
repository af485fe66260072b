// Curves by uPlot (assets/uplot) in the window's own colours. Both stand in front of each script that draws some.
const plots = (window.studioPlots ??= (() => {
  const LETTER_PX = 11;
  const START_PX = 36; // half of "step 100000", which stands below the upright axis
  const COUNTS = [1, 2, 5].flatMap((one) => Array.from({ length: 9 }, (_, power) => one * 10 ** power)).sort((a, b) => a - b);
  const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
  // Its own listeners know a mouse alone; ours a finger and a pen, too.
  const NO_MOUSE = Object.fromEntries(["mousedown", "mouseup", "click", "dblclick", "mousemove", "mouseleave", "mouseenter"].map((kind) => [kind, () => null]));
  const followers = [];
  let palette = {};

  const colour = (place, name) => (palette[name] ??= getComputedStyle(place).getPropertyValue(`--${name}`).trim());

  // Calls `redraw` when the window has other colours.
  function followColours(redraw) {
    followers.push(redraw);
  }
  function repaint() {
    palette = {};
    followers.forEach((redraw) => redraw());
  }
  new MutationObserver(repaint).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);

  function short(value) {
    if (!Number.isFinite(value)) return "";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e5 || size < 1e-3) return value.toExponential(1).replace("e+", "e").replace(".0e", "e");
    return String(Number(value.toPrecision(size >= 100 ? 4 : 3)));
  }

  // Room around values from `low` to `high`, below nought only where there are such.
  function widen(low, high) {
    const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    return [low < 0 ? low - room : Math.max(low - room, 0), high + room];
  }

  // The same for the logarithms of positive values.
  function widenPowers(low, high) {
    const room = Math.log10(high / low) * 0.06 || 0.04;
    return [low / 10 ** room, high * 10 ** room];
  }

  // Marks of a logarithmic axis: uPlot's own fill whole powers of ten, in which a curve takes a fifth of the height.
  function powers(low, high) {
    const range = Math.log10(high / low), ones = range > 3 ? [1] : range > 1 ? [1, 3] : [1, 2, 3, 5], marks = [];
    for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++) marks.push(...ones.map((one) => one * 10 ** power));
    const inside = marks.filter((mark) => mark >= low && mark <= high);
    return inside.length > 1 ? inside : [low, Math.sqrt(low * high), high];
  }

  // Marks of the level axis: both ends, and between them round numbers that are far enough away from these.
  function between(low, high, step) {
    const marks = [low], room = 0.8 * step;
    for (let mark = Math.ceil((low + room) / step) * step; mark <= high - room; mark += step) marks.push(mark);
    return [...marks, high];
  }

  function widthOf(plot, words) {
    plot.ctx.font = plot.axes[1].font[0];
    return Math.max(0, ...words.map((word) => plot.ctx.measureText(word).width)) / devicePixelRatio;
  }

  // Returns a plot that fills `place`, without data yet. Its `curves` are uPlot's series, with the name of a colour in
  // place of `stroke` and with the width of the dot that the pointer gets there; `range` gives the ends of the upright
  // axis for the least and the greatest value; `name` the words of a mark of the other one, which counts steps, or
  // seconds; `point` hears at which x the pointer is, null: nowhere.
  function make(place, { width, height, curves, log = false, range = widen, seconds = false, name, right, point, hooks = {} }) {
    const font = `${LETTER_PX}px ${getComputedStyle(place).fontFamily}`;
    const paint = (name) => () => colour(place, name);
    const axis = { stroke: paint("studio-soft"), font, ticks: { show: false }, gap: 6 };
    const plot = new uPlot({
      width,
      height,
      padding: [8, right, 0, 0],
      legend: { show: false },
      cursor: { y: false, bind: NO_MOUSE, drag: { x: false, y: false }, points: { size: (_, i) => curves[i - 1].dot ?? 0 } },
      scales: {
        x: { time: false, range: (_, low, high) => [low, Math.max(high, low + 1)] },
        y: { distr: log ? 3 : 1, range: (_, low, high) => (low === null ? [null, null] : (log ? widenPowers : range)(low, high)) },
      },
      axes: [
        {
          ...axis,
          size: 20,
          space: 64,
          grid: { show: false },
          incrs: seconds ? (_, __, low, high) => SECONDS.filter((one) => one >= 60 || high < 3600) : COUNTS,
          splits: (_, __, low, high, step) => between(low, high, step),
          values: (_, marks) => marks.map(name),
        },
        {
          ...axis,
          ...(log ? { splits: (_, __, low, high) => powers(low, high), filter: (_, marks) => marks } : {}),
          size: (one, words) => Math.max(START_PX, Math.ceil(widthOf(one, words || [])) + 12),
          grid: { stroke: paint("studio-line"), width: 1 },
          values: (_, marks) => marks.map(short),
        },
      ],
      series: [{}, ...curves.map((curve) => {
        const stroke = paint(curve.colour);
        return { pxAlign: 0, ...curve, stroke, points: { size: 6, show: false, ...curve.points, stroke, fill: stroke } };
      })],
      hooks,
    }, null, place);
    plot.over.addEventListener("pointermove", (event) => point(plot.posToVal(event.clientX - plot.over.getBoundingClientRect().left, "x")));
    plot.over.addEventListener("pointerleave", () => point(null));
    return plot;
  }

  // Shows or hides the line through all curves at `x`.
  function mark(plot, x) {
    if (x === null && plot.cursor.left < 0) return;
    plot.setCursor(x === null ? { left: -10, top: -10 } : { left: plot.valToPos(x, "x"), top: 0 });
  }

  return { make, mark, short, widen, colour, followColours };
})());
