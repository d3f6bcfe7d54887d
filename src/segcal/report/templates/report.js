"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const byId = (id) => document.getElementById(id);
  const all = (query, root = document) => [...root.querySelectorAll(query)];
  document.documentElement.classList.add("js");

  const state = { dataset: "", region: data.region, spot: "", methods: new Set(data.methods.map((m) => m.name)) };

  function make(name, attributes = {}, parent = null, text = "") {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  }
  function element(name, className, parent, text = "") {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text) node.textContent = text;
    parent.append(node);
    return node;
  }

  // Tables: a button in each heading sorts by its column; rows without a value stay last.
  function sortBy(table, index, heading, text) {
    const up = heading.getAttribute("aria-sort") !== "ascending";
    for (const other of all("thead th", table)) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    table.classList.add("sorted");
    const body = table.tBodies[0];
    const key = (row) => row.cells[index].dataset.sort ?? row.cells[index].textContent;
    const rows = [...body.rows].map((row) => [key(row), row]);
    rows.sort(([a], [b]) => {
      if (a === "" || b === "") return (a === "") - (b === "");
      const order = text ? a.localeCompare(b, undefined, { numeric: true }) : Number(a) - Number(b);
      return up ? order : -order;
    });
    body.append(...rows.map(([, row]) => row));
  }
  for (const table of all("table.sortable")) {
    const headings = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
    headings.forEach((heading, index) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      button.title = "Sort";
      heading.append(button);
      button.addEventListener("click", () => sortBy(table, index, heading, heading.dataset.kind === "text"));
    });
  }

  // Reliability diagrams.
  function curveOf(dataset, method, region) {
    const [where, index] = state.spot.split(":");
    if (state.spot === "") {
      const curve = decode(dataset.pooled[region]?.[method.name]);
      if (curve) curve.singles = singlesOf(dataset, method, region);
      return curve;
    }
    return data.datasets[where] === dataset ? curveOfCase(dataset, method, region, index) : null;
  }
  function curveOfCase(dataset, method, region, index) {
    const flat = dataset.single[region]?.[method.name]?.[index];
    return flat ? { bins: dataset.pooled[region][method.name].n.length, points: unpack(flat) } : null;
  }
  function unpack(flat) {
    const points = [];
    for (let i = 0; i < flat.length; i += 4) {
      points.push({ bin: flat[i], n: flat[i + 1], c: flat[i + 2] / 1e4, a: flat[i + 3] / 1e4 });
    }
    return points;
  }
  // Single cases behind a pooled curve: at most 40, evenly selected.
  function singlesOf(dataset, method, region) {
    const found = (dataset.single[region]?.[method.name] ?? []).filter((flat) => flat);
    const step = Math.ceil(found.length / 40);
    return found.filter((_, i) => i % step === 0).map((flat) => unpack(flat).filter((p) => p.n >= data.few)).filter((line) => line.length > 1);
  }
  function decode(found) {
    if (!found) return null;
    const share = (value) => (value === null ? null : value / 1e4);
    const points = found.n.map((n, bin) => ({ bin, n, c: share(found.c[bin]), a: share(found.a[bin]), l: share(found.l[bin]), h: share(found.h[bin]) }));
    return { bins: found.n.length, points: points.filter((p) => p.n > 0) };
  }
  const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(3);

  function diagram(parent, curve, method, side) {
    const left = 36, top = 6, size = [side + left + 8, side + top + 34];
    const x = (v) => left + side * v, y = (v) => top + side * (1 - v);
    const total = curve.points.reduce((sum, p) => sum + p.n, 0);
    const ece = curve.points.reduce((sum, p) => sum + p.n * Math.abs(p.a - p.c), 0) / total;
    const gap = curve.points.reduce((sum, p) => sum + p.n * (p.c - p.a), 0) / total;
    const holder = element("div", "plot", parent);
    element("p", "name", holder, method.title).title = method.title;
    const svg = make("svg", { viewBox: `0 0 ${size[0]} ${size[1]}`, width: size[0], height: size[1], role: "img",
      "aria-label": `${method.title}: ECE ${ece.toFixed(3)}, confidence minus accuracy ${signed(gap)}, ${total.toLocaleString("en")} voxels` }, holder);
    const most = Math.max(...curve.points.map((p) => p.n));
    for (const p of curve.points) {
      const height = 0.22 * side * Math.sqrt(p.n / most);
      const bar = make("rect", { x: x(p.bin / curve.bins), y: y(0) - height, width: side / curve.bins, height, class: "bar" }, svg);
      make("title", {}, bar, `${p.n.toLocaleString("en")} voxels`);
    }
    make("path", { d: `M${x(0)} ${y(1)}V${y(0)}H${x(1)}`, class: "axis" }, svg);
    make("path", { d: `M${x(0)} ${y(0)}L${x(1)} ${y(1)}`, class: "axis", "stroke-dasharray": "4 3" }, svg);
    for (const single of curve.singles ?? []) make("path", { d: "M" + single.map((p) => `${x(p.c)} ${y(p.a)}`).join("L"), class: "thin" }, svg);
    const band = curve.points.filter((p) => p.n >= data.few && p.l !== null && p.l !== undefined);
    if (band.length) {
      const path = band.map((p) => `${x(p.c)} ${y(p.h)}`).concat(band.slice().reverse().map((p) => `${x(p.c)} ${y(p.l)}`));
      make("path", { d: "M" + path.join("L") + "Z", fill: method.color, opacity: 0.22 }, svg);
    }
    const line = curve.points.filter((p) => p.n >= data.few);
    make("path", { d: line.length ? "M" + line.map((p) => `${x(p.c)} ${y(p.a)}`).join("L") : "", fill: "none", stroke: method.color, "stroke-width": 1.7 }, svg);
    for (const p of curve.points) {
      const dot = make("circle", { cx: x(p.c), cy: y(p.a), r: 2.6, fill: p.n >= data.few ? method.color : "transparent", stroke: method.color, "stroke-width": 0.8 }, svg);
      const span = p.l === null || p.l === undefined ? "" : ` [${p.l.toFixed(3)}, ${p.h.toFixed(3)}]`;
      make("title", {}, dot, `confidence ${p.c.toFixed(3)}, accuracy ${p.a.toFixed(3)}${span}, ${p.n.toLocaleString("en")} voxels`);
    }
    for (const v of [0, 0.5, 1]) {
      make("text", { x: x(v), y: y(0) + 12, class: "tick", "text-anchor": "middle" }, svg, String(v));
      make("text", { x: left - 4, y: y(v) + 3, class: "tick", "text-anchor": "end" }, svg, String(v));
    }
    make("text", { x: x(0.5), y: y(0) + 25, class: "tick", "text-anchor": "middle" }, svg, "confidence");
    make("text", { x: 9, y: y(0.5), class: "tick", "text-anchor": "middle", transform: `rotate(-90 9 ${y(0.5)})` }, svg, "accuracy");
    make("text", { x: left + 5, y: top + 10, class: "label" }, svg, `${curve.singles ? "pooled ECE" : "ECE"} ${ece.toFixed(3)}`);
    make("text", { x: left + 5, y: top + 23, class: "label" }, svg, `gap ${signed(gap)}`);
  }

  const picked = () => data.methods.filter((m) => state.methods.has(m.name));
  const shownSets = () => data.datasets.filter((d) => !state.dataset || d.name === state.dataset);
  function caseName() {
    if (state.spot === "") return "all cases, pooled";
    const [where, index] = state.spot.split(":");
    return `case ${data.datasets[where].cases[index]}`;
  }

  function drawReliability() {
    const root = byId("live-reliability");
    if (!root) return;
    root.replaceChildren();
    root.hidden = false;
    for (const dataset of shownSets()) {
      // A single network has room for all regions.
      const alone = picked().length === 1 && data.datasets.length === 1;
      const regions = alone ? [state.region, ...data.regions.filter((region) => region !== state.region)] : [state.region];
      const wanted = regions.flatMap((region) => picked().map((m) => [alone ? { ...m, title: `region ${region}` } : m, curveOf(dataset, m, region)]));
      const found = wanted.filter(([, curve]) => curve && curve.points.length);
      if (!found.length) continue;
      element("h3", "", root, `${dataset.title}, ${alone ? "" : `region ${state.region}, `}${caseName()}`);
      const few = picked().length <= data.networks;
      const row = element("div", few ? "row few" : "row", root);
      for (const [method, curve] of found) diagram(row, curve, method, few ? 310 : 150);
    }
    if (!root.childNodes.length) {
      const why = state.methods.size === 0 ? "No method is selected." : state.spot === "" ? "There are no bins for this selection."
        : "The page does not contain the bins of this case and region" + (data.thinned ? " (too many cases)." : ".");
      element("p", "status", root, why);
    }
  }

  // DSC against ECE.
  const SHAPES = {
    o: (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`,
    s: (r) => `M${-r} ${-r}H${r}V${r}H${-r}Z`,
    "^": (r) => `M0 ${-1.2 * r}L${1.1 * r} ${r}H${-1.1 * r}Z`,
    v: (r) => `M0 ${1.2 * r}L${1.1 * r} ${-r}H${-1.1 * r}Z`,
    "<": (r) => `M${-1.2 * r} 0L${r} ${1.1 * r}V${-1.1 * r}Z`,
    ">": (r) => `M${1.2 * r} 0L${-r} ${1.1 * r}V${-1.1 * r}Z`,
    D: (r) => `M0 ${-1.3 * r}L${1.3 * r} 0L0 ${1.3 * r}L${-1.3 * r} 0Z`,
    P: (r) => `M${-r / 2} ${-r}H${r / 2}V${-r / 2}H${r}V${r / 2}H${r / 2}V${r}H${-r / 2}V${r / 2}H${-r}V${-r / 2}H${-r / 2}Z`,
    X: (r) => `M${-r} ${-r / 2}L${-r / 2} ${-r}L0 ${-r / 2}L${r / 2} ${-r}L${r} ${-r / 2}L${r / 2} 0L${r} ${r / 2}L${r / 2} ${r}L0 ${r / 2}L${-r / 2} ${r}L${-r} ${r / 2}L${-r / 2} 0Z`,
    h: (r) => `M0 ${-1.1 * r}L${r} ${-r / 2}V${r / 2}L0 ${1.1 * r}L${-r} ${r / 2}V${-r / 2}Z`,
  };
  function nice(low, high) {
    const span = Math.max(high - low, 0.02);
    const step = [0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5].find((s) => span / s <= 6) ?? 1;
    const from = Math.max(0, Math.floor((low - 0.02 * span) / step) * step), to = Math.min(1, Math.ceil((high + 0.02 * span) / step) * step);
    const ticks = [];
    for (let v = from; v <= to + 1e-9; v += step) ticks.push(v);
    return { from, to: Math.max(to, from + step), ticks, digits: step < 0.1 ? 2 : step === 0.25 ? 2 : 1 };
  }
  function scatter(parent, dataset) {
    const at = data.datasets.indexOf(dataset);
    const points = [];
    for (const method of picked()) {
      const dsc = dataset.dsc[method.name], ece = dataset.ece[state.region]?.[method.name];
      if (dsc && ece) dataset.cases.forEach((name, i) => {
        if (dsc[i] !== null && ece[i] !== null) points.push({ method, name, i, dsc: dsc[i], ece: ece[i] });
      });
    }
    if (!points.length) return;
    const holder = element("div", "plot wide", parent);
    element("p", "name", holder, `${dataset.title}, region ${state.region}`);
    const width = Math.max(320, holder.clientWidth || 560), height = Math.round(Math.min(width * 0.6, 400)), left = 46, bottom = 36, top = 8, right = 10;
    const h = nice(Math.min(...points.map((p) => p.dsc)), Math.max(...points.map((p) => p.dsc)));
    const v = nice(0, Math.max(...points.map((p) => p.ece)));
    const x = (value) => left + ((width - left - right) * (value - h.from)) / (h.to - h.from);
    const y = (value) => height - bottom - ((height - bottom - top) * (value - v.from)) / (v.to - v.from);
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `DSC against ECE of ${points.length} cases and methods, ${dataset.title}` }, holder);
    for (const t of h.ticks) {
      make("path", { d: `M${x(t)} ${top}V${height - bottom}`, class: "grid" }, svg);
      make("text", { x: x(t), y: height - bottom + 14, class: "tick", "text-anchor": "middle" }, svg, t.toFixed(h.digits));
    }
    for (const t of v.ticks) {
      make("path", { d: `M${left} ${y(t)}H${width - right}`, class: "grid" }, svg);
      make("text", { x: left - 5, y: y(t) + 3, class: "tick", "text-anchor": "end" }, svg, t.toFixed(v.digits));
    }
    make("text", { x: width - right, y: height - 4, class: "label", "text-anchor": "end" }, svg, "DSC");
    make("text", { x: 12, y: top + 4, class: "label", transform: `rotate(-90 12 ${top + 4})`, "text-anchor": "end" }, svg, "ECE");
    const chosen = (p) => state.spot === `${at}:${p.i}`;
    const dim = state.spot !== "" && points.some(chosen);
    for (const p of points.slice().sort((a, b) => chosen(a) - chosen(b))) {
      const mark = make("path", { d: SHAPES[p.method.marker](chosen(p) ? 5.5 : 3.4), transform: `translate(${x(p.dsc)} ${y(p.ece)})`, fill: p.method.color,
        opacity: dim && !chosen(p) ? 0.25 : 0.85, class: "point", stroke: chosen(p) ? "var(--ink)" : "none" }, svg);
      make("title", {}, mark, `${p.method.title}\n${p.name}\nDSC ${p.dsc.toFixed(3)}, ECE ${p.ece.toFixed(3)}`);
      const open = () => {
        byId("pick-case").value = chosen(p) ? "" : `${at}:${p.i}`;
        state.spot = byId("pick-case").value;
        draw();
        if (state.spot) openCase(dataset.name, p.name);
      };
      mark.addEventListener("click", open);
      if (points.length <= 400 && browsed(dataset.name, p.name)) {
        for (const [key, value] of Object.entries({ tabindex: 0, role: "button", "aria-label": `${p.method.title}, ${p.name}: open in the case browser` })) mark.setAttribute(key, value);
        mark.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(); } });
      }
    }
  }
  function drawScatter() {
    const root = byId("live-scatter");
    if (!root) return;
    root.replaceChildren();
    root.hidden = false;
    const key = element("p", "legend", root);
    for (const method of picked()) {
      const item = element("span", "", key);
      const mark = make("svg", { viewBox: "-6 -6 12 12", width: 12, height: 12, "aria-hidden": "true", style: "display:inline-block;vertical-align:-1px;margin-right:.35em" }, item);
      make("path", { d: SHAPES[method.marker](4), fill: method.color }, mark);
      item.append(method.title);
    }
    const row = element("div", "row pairs", root);
    for (const dataset of shownSets()) scatter(row, dataset);
    element("p", "status hint", root, row.childNodes.length ? "Click a point to show the reliability of that case above, and its slices below if it is in the case browser; click again to show all cases." : "Nothing to show for this selection.");
  }

  // The case browser: outlines, confidence and errors, drawn from the layers of each case.
  const VIEWS = ["outlines", "confidence", "errors"], MANY_CLASSES = 12;
  const view = { shot: null, at: 0, layers: new Set(data.methods.length <= data.networks ? VIEWS : VIEWS.slice(0, 1)) };
  const browsed = (dataset, name) => data.browser.find((shot) => shot.dataset === dataset && shot.name === name);
  const offered = () => data.browser.filter((shot) => !state.dataset || shot.dataset === state.dataset);
  const rgb = (color) => [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16));

  async function inflate(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer());
  }
  async function load(shot) {
    const truth = await inflate(shot.truth), image = new Image(), methods = {};
    for (const [name, found] of Object.entries(shot.methods)) methods[name] = await inflate(found.layers);
    if (shot.image) { image.src = `data:image/jpeg;base64,${shot.image}`; await image.decode(); }
    return { truth, methods, image: shot.image ? image : null };
  }
  // The borders of each label, as label -> path.
  function outlines(values, [high, wide], sx, sy) {
    const paths = new Map();
    for (let y = 0; y < high; y++) for (let x = 0; x < wide; x++) {
      const i = y * wide + x, label = values[i];
      if (!label) continue;
      if (!paths.has(label)) paths.set(label, new Path2D());
      const path = paths.get(label), line = (a, b, c, d) => { path.moveTo(a * sx, b * sy); path.lineTo(c * sx, d * sy); };
      if (y > 0 && values[i - wide] !== label) line(x, y, x + 1, y);
      if (y < high - 1 && values[i + wide] !== label) line(x, y + 1, x + 1, y + 1);
      if (x > 0 && values[i - 1] !== label) line(x, y, x, y + 1);
      if (x < wide - 1 && values[i + 1] !== label) line(x + 1, y, x + 1, y + 1);
    }
    return paths;
  }
  // [red, green, blue, opacity] of a voxel, or null. Errors are the more opaque, the more confident they are.
  function tint(kind, truth, label, doubt) {
    if (kind === "confidence") return doubt > 0 ? [...rgb(data.colors.doubt), 255 * doubt] : null;
    if (kind === "outlines" || truth === label) return null;
    const error = !label ? "missed" : !truth ? "extra" : "other class";
    return [...rgb(data.colors[error]), 90 + 150 * (1 - doubt)];
  }
  function paint(canvas, kind, shot, layers, found) {
    const [high, wide] = shot.pixels, area = high * wide, from = view.at * area, ctx = canvas.getContext("2d");
    const truth = layers.truth.subarray(from, from + area), labels = found.subarray(from, from + area);
    const levels = found.subarray(from + shot.count * area, from + shot.count * area + area);
    ctx.clearRect(0, 0, canvas.width, canvas.height);
    if (layers.image) ctx.drawImage(layers.image, 0, view.at * high, wide, high, 0, 0, canvas.width, canvas.height);
    const cover = Object.assign(document.createElement("canvas"), { width: wide, height: high });
    const pixels = new ImageData(wide, high), least = 1 / Math.max(shot.classes, 2);
    for (let i = 0; i < area; i++) {
      const doubt = Math.min(1, (1 - levels[i] / 63) / (1 - least)), color = tint(kind, truth[i], labels[i], doubt);
      if (color) pixels.data.set(color, 4 * i);
    }
    cover.getContext("2d").putImageData(pixels, 0, 0);
    ctx.imageSmoothingEnabled = false;
    ctx.drawImage(cover, 0, 0, canvas.width, canvas.height);
    const sx = canvas.width / wide, sy = canvas.height / high, thick = Math.max(canvas.width, canvas.height) / 200;
    ctx.lineWidth = kind === "outlines" ? 1.8 * thick : 0.8 * thick;
    ctx.strokeStyle = "#fff";
    for (const path of outlines(truth, shot.pixels, sx, sy).values()) ctx.stroke(path);
    if (kind !== "outlines") return;
    const classes = data.datasets.find((d) => d.name === shot.dataset).classes;
    ctx.lineWidth = thick;
    for (const [label, path] of outlines(labels, shot.pixels, sx, sy)) { ctx.strokeStyle = classes[label - 1]?.[1] ?? "#ffe14d"; ctx.stroke(path); }
  }
  // Whether the key names a label: of many only those of this slice.
  function drawn(shot, layers, classes) {
    if (classes <= MANY_CLASSES) return () => true;
    const area = shot.pixels[0] * shot.pixels[1], from = view.at * area, labels = new Set();
    for (const found of Object.values(layers.methods)) for (const label of found.subarray(from, from + area)) labels.add(label);
    return (label) => labels.has(label);
  }
  const place = (shot) => (shot.slices.length ? `slice ${shot.slices[view.at]} of the scan, ` : "slice ") + `${view.at + 1} of ${shot.count} stored`;

  async function drawBrowser() {
    const root = byId("live-browser"), shot = view.shot;
    if (!root || !shot) return;
    const layers = await (shot.loaded ??= load(shot));
    if (view.shot !== shot) return; // another case was selected meanwhile
    byId("browse-case").value = String(data.browser.indexOf(shot));
    const slider = byId("browse-slice"), dataset = data.datasets.find((d) => d.name === shot.dataset);
    slider.max = shot.count - 1;
    slider.disabled = shot.count === 1;
    slider.value = view.at;
    slider.setAttribute("aria-valuetext", place(shot));
    byId("browse-status").textContent = `${dataset.title}, ${shot.name}${shot.role ? ` (${shot.role} case)` : ""}: mean DSC ${shot.dsc.toFixed(3)}, ${place(shot)}`;
    const key = byId("browse-key"), stage = byId("browse-stage"), kinds = VIEWS.filter((kind) => view.layers.has(kind));
    key.replaceChildren();
    const entry = (name, color) => { const item = element("span", "", key); element("i", "swatch", item).style.background = color; item.append(name); };
    if (kinds.includes("outlines")) {
      entry("reference outline", "#fff");
      const shown = drawn(shot, layers, dataset.classes.length);
      dataset.classes.forEach(([name, color], i) => { if (shown(i + 1)) entry(`${name}, predicted`, color); });
    }
    if (kinds.includes("confidence")) entry("low confidence", data.colors.doubt);
    if (kinds.includes("errors")) for (const name of ["missed", "extra", "other class"]) entry(name, data.colors[name]);
    stage.replaceChildren();
    const methods = picked().filter((method) => method.name in layers.methods);
    stage.classList.toggle("few", methods.length <= data.networks);
    for (const method of methods) {
      const facts = shot.methods[method.name], subject = element("div", "subject", stage), line = element("p", "", subject);
      element("i", "swatch", line).style.background = method.color;
      line.append(method.title, [["DSC", facts.dsc], ["ECE", facts.ece]].map(([name, v]) => ` · ${name} ${v === null ? "–" : v.toFixed(3)}`).join(""));
      if (facts.outside >= 0.01) line.append(` · ${Math.round(100 * facts.outside)} % of the predicted foreground lies outside the slices`);
      const shots = element("div", "shots", subject), scale = (methods.length <= data.networks ? 832 : 400) / Math.max(...shot.size);
      for (const kind of kinds) {
        const cell = element("div", "", shots);
        element("small", "", cell, kind);
        const canvas = element("canvas", "", cell);
        [canvas.width, canvas.height] = shot.size.map((length) => Math.round(scale * length));
        canvas.setAttribute("role", "img");
        canvas.setAttribute("aria-label", `${kind} of ${method.title}, ${shot.name}, ${place(shot)}`);
        paint(canvas, kind, shot, layers, layers.methods[method.name]);
      }
      const curve = curveOfCase(dataset, method, state.region, dataset.cases.indexOf(shot.name));
      if (curve && methods.length <= data.networks) diagram(element("div", "", shots), curve, { ...method, title: `reliability, ${state.region}${data.seeds > 1 ? ", all seeds" : ""}` }, 270);
    }
  }
  function show(shot, at = shot.start) {
    view.shot = shot;
    view.at = Math.max(0, Math.min(shot.count - 1, at));
    return drawBrowser();
  }
  function openCase(dataset, name) {
    const shot = browsed(dataset, name);
    if (!shot || !view.shot) return;
    show(shot);
    byId("pictures").scrollIntoView();
    byId("browse-stage").focus({ preventScroll: true });
  }
  function fillBrowser() {
    const select = byId("browse-case"), several = data.datasets.length > 1;
    if (!select) return;
    const named = (shot) => `${several ? `${data.datasets.find((d) => d.name === shot.dataset).title}: ` : ""}${shot.name}, DSC ${shot.dsc.toFixed(3)}${shot.role ? `, ${shot.role}` : ""}`;
    select.replaceChildren(...offered().map((shot) => new Option(named(shot), data.browser.indexOf(shot))));
    if (!offered().includes(view.shot)) view.shot = offered()[0] ?? null;
    if (view.shot) show(view.shot);
    else byId("browse-stage").replaceChildren();
  }
  function makeBrowser() {
    const root = byId("live-browser");
    if (!root || !data.browser.length || !("DecompressionStream" in window)) return;
    root.hidden = false;
    const bar = element("div", "browse", root), labeled = (text) => element("label", "", bar, text);
    const select = element("select", "", labeled("Case"));
    const slider = Object.assign(element("input", "", labeled("Slice")), { type: "range", min: 0, step: 1 });
    [select.id, slider.id] = ["browse-case", "browse-slice"];
    for (const kind of VIEWS) {
      const label = labeled(""), box = Object.assign(element("input", "", label), { type: "checkbox", name: "view", value: kind, checked: view.layers.has(kind) });
      label.append(kind);
      box.addEventListener("change", () => { view.layers[box.checked ? "add" : "delete"](kind); drawBrowser(); });
    }
    const status = element("p", "status", root), key = element("p", "legend", root), stage = element("div", "stage", root);
    [status.id, key.id, stage.id, stage.tabIndex] = ["browse-status", "browse-key", "browse-stage", 0];
    status.setAttribute("aria-live", "polite");
    stage.setAttribute("role", "group");
    stage.setAttribute("aria-label", "Slices: the left and right arrow keys change the slice, up and down the case");
    element("p", "status hint", root, "Arrow keys on the slices: left and right change the slice, up and down the case.");
    select.addEventListener("change", () => show(data.browser[select.value]));
    slider.addEventListener("input", () => show(view.shot, Number(slider.value)));
    for (const node of [slider, stage]) node.addEventListener("keydown", (event) => {
      const [turn, other] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [0, 0];
      if (!turn && !other) return;
      event.preventDefault();
      const list = offered(), next = list[list.indexOf(view.shot) + other];
      if (turn) show(view.shot, view.at + turn);
      else if (next) show(next);
    });
    for (const link of all("a[data-case]")) link.addEventListener("click", (event) => { event.preventDefault(); openCase(link.dataset.in, link.dataset.case); });
    view.shot = data.browser[0];
  }

  // The selection in the bar.
  function fillCases() {
    const select = byId("pick-case");
    if (!select) return;
    while (select.options.length > 1) select.lastElementChild.remove();
    data.datasets.forEach((dataset, at) => {
      if (state.dataset && dataset.name !== state.dataset) return;
      const group = document.createElement("optgroup");
      group.label = dataset.title;
      dataset.cases.forEach((name, i) => group.append(new Option(name, `${at}:${i}`)));
      select.append(group);
    });
    state.spot = "";
  }
  function filter() {
    for (const node of all("[data-dataset],[data-method],[data-region]")) {
      const { dataset, method, region } = node.dataset;
      node.hidden = Boolean((dataset && state.dataset && dataset !== state.dataset)
        || (method && !state.methods.has(method)) || (region && region !== state.region));
    }
  }
  function draw() {
    filter();
    drawReliability();
    drawScatter();
    drawBrowser();
    for (const node of all(".scroll")) node.classList.toggle("more", node.scrollWidth > node.clientWidth + 2);
  }
  const controls = byId("controls");
  if (controls) {
    controls.hidden = false;
    controls.addEventListener("submit", (event) => event.preventDefault());
    byId("pick-dataset").addEventListener("change", (event) => { state.dataset = event.target.value; fillCases(); draw(); fillBrowser(); });
    byId("pick-region")?.addEventListener("change", (event) => { state.region = event.target.value; draw(); });
    byId("pick-case").addEventListener("change", (event) => { state.spot = event.target.value; draw(); });
    const boxes = all("input[name=method]", controls);
    const read = () => { state.methods = new Set(boxes.filter((box) => box.checked).map((box) => box.value)); draw(); };
    for (const box of boxes) box.addEventListener("change", read);
    byId("pick-all").addEventListener("click", () => { boxes.forEach((box) => { box.checked = true; }); read(); });
    byId("pick-none").addEventListener("click", () => { boxes.forEach((box) => { box.checked = false; }); read(); });
    makeBrowser();
    fillCases();
    fillBrowser();
    draw();
    let wide = window.innerWidth, timer = 0;
    window.addEventListener("resize", () => {
      clearTimeout(timer);
      timer = setTimeout(() => { if (window.innerWidth !== wide) { wide = window.innerWidth; draw(); } }, 150);
    });
  }
})();
