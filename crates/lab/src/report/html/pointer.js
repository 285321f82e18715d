// Shows the values of lines under the pointer. Everything else works without it.
(() => {
  const tip = document.getElementById("tip");
  const back = {
    lin: (f, lo, hi) => lo + f * (hi - lo),
    log: (f, lo, hi) => 10 ** (Math.log10(lo) + f * (Math.log10(hi) - Math.log10(lo))),
    nines: (f, lo, hi) => 1 - 10 ** (Math.log10(1 - lo) + f * (Math.log10(1 - hi) - Math.log10(1 - lo))),
  };
  const axis = (text) => {
    const [kind, lo, hi, from, to, unit] = text.split(",");
    return { of: (at) => back[kind]((at - from) / (to - from), +lo, +hi), from: +from, to: +to, unit, kind };
  };
  const show = (v, { unit, kind }) => {
    if (kind === "nines") return (v * 100).toPrecision(6).replace(/\.?0+$/, "") + "%";
    if (unit !== "ns") return +v.toPrecision(4) + " " + unit;
    const [factor, name] = v < 1e3 ? [1, "ns"] : v < 1e6 ? [1e3, "µs"] : v < 1e9 ? [1e6, "ms"] : [1e9, "s"];
    return +(v / factor).toPrecision(3) + " " + name;
  };
  // The height of a line at a place: its path has only M, L, H and V.
  const corners = new WeakMap();
  const points = (path) => {
    if (corners.has(path)) return corners.get(path);
    const list = [];
    let x = 0, y = 0;
    for (const [, op, args] of path.getAttribute("d").matchAll(/([MLHV])([^MLHV]*)/g)) {
      const n = args.trim().split(/\s+/).map(Number);
      if (op === "H") x = n[0];
      else if (op === "V") y = n[0];
      else [x, y] = n;
      list.push([x, y]);
    }
    corners.set(path, list);
    return list;
  };
  const height = (path, at) => {
    const list = points(path);
    for (let i = 1; i < list.length; i++) {
      const [[x0, y0], [x1, y1]] = [list[i - 1], list[i]];
      if (x0 <= at && at <= x1 && x1 > x0) return y0 + ((at - x0) / (x1 - x0)) * (y1 - y0);
    }
    return null;
  };
  for (const svg of document.querySelectorAll("svg.lines")) {
    const x = axis(svg.dataset.x), y = axis(svg.dataset.y);
    const lines = [...svg.querySelectorAll(".line")];
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const at = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      if (at < x.from || at > x.to) { tip.hidden = true; return; }
      const text = [show(x.of(at), x)];
      for (const line of lines) {
        const h = height(line, at);
        if (h !== null) text.push(line.dataset.name + ": " + show(y.of(h), y));
      }
      tip.textContent = text.join("\n");
      tip.hidden = false;
      const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
      tip.style.left = Math.max(8, Math.min(event.clientX + 12, room)) + "px";
      tip.style.top = Math.max(8, event.clientY - tip.offsetHeight - 12) + "px";
    });
    svg.addEventListener("pointerleave", () => { tip.hidden = true; });
  }
})();
