"use strict";
/* The map: points drawn on canvases, coloured, isolated, zoomed, and shown as pictures when touched.
   Names come from files of others: they are only ever set as textContent. */
(() => {
  const source = document.getElementById("map-data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const PAD = 18; // css px between the outermost points and the edge
  const FULL = 9999; // coordinates are whole numbers up to this
  const REACH = 14; // css px around the pointer in which a point is found
  const MOST_CHIPS = 300; // more are found by nobody
  const MOST_COLOURS = 12;
  const FAINT = "#e2e4e3";
  const tip = document.getElementById("tip");
  const legend = document.getElementById("legend");
  const sprites = [...document.querySelectorAll("img.sprite")];
  const state = { scheme: "", only: -1, chosen: new Set(), lit: -1 };

  /* What points can be coloured by: names, and the code of a point of a panel (-1: not known). */
  const columns = Object.fromEntries(data.columns.map((column) => [column.key, column]));
  const label = columns.label;
  const schemes = {};
  for (const column of data.columns) {
    schemes[column.key] = { title: column.title, names: column.names, code: (_, patch) => column.codes[patch] };
  }
  const isJudged = data.panels.some((panel) => panel.predicted);
  const guess = (panel, patch) => (panel.predicted ? panel.predicted[panel.place.get(patch)] : -1);
  if (isJudged) {
    schemes.predicted = { title: "prediction", names: label.names, code: guess };
    schemes.right = {
      title: "right or wrong",
      names: ["right", "wrong"],
      code: (panel, patch) => {
        const said = guess(panel, patch);
        return said < 0 ? -1 : Number(said !== label.codes[patch]);
      },
    };
  }

  /* Colours: those of the classes are the figures'; others turn by the golden angle, so that neighbours differ. */
  const turned = (place) => {
    const hue = (place * 137.508 + 210) % 360;
    return `hsl(${hue.toFixed(1)} ${[62, 78, 48][place % 3]}% ${[45, 58, 34][place % 3]}%)`;
  };
  schemes.label.colours = label.names.map((_, code) => data.colours[code] || turned(code));
  if (isJudged) {
    schemes.predicted.colours = schemes.label.colours;
    schemes.right.colours = ["#9fc9c1", "#c8401a"];
  }
  /* More sites than can be told apart: those with most patches have colours, and the others are grey. */
  if (columns.site) {
    const counts = columns.site.names.map((_, code) => columns.site.codes.filter((other) => other === code).length);
    const order = counts.map((_, code) => code).sort((a, b) => counts[b] - counts[a]);
    schemes.site.colours = order.map((_, code) => (order.indexOf(code) < MOST_COLOURS ? turned(order.indexOf(code)) : "#9aa29e"));
  }
  for (const key of ["patient", "slide"]) {
    if (!columns[key]) continue;
    // counted within each class, so that those of one class are as far apart as can be
    const seen = new Map();
    const first = new Map();
    columns[key].codes.forEach((code, patch) => {
      if (code < 0 || first.has(code)) return;
      const group = label.codes[patch];
      first.set(code, seen.get(group) || 0);
      seen.set(group, (seen.get(group) || 0) + 1);
    });
    schemes[key].colours = columns[key].names.map((_, code) => turned(first.get(code) || 0));
  }

  /* Panels: one an encoder, each with its own view. */
  const panels = data.panels.map((panel, number) => {
    const canvas = document.getElementById(`map-${number}`);
    const place = new Map(panel.patch.map((patch, index) => [patch, index]));
    return { ...panel, canvas, place, pen: canvas.getContext("2d"), zoom: 1, left: 0, top: 0, side: 0 };
  });
  const isShown = (panel, patch) =>
    (state.only < 0 || label.codes[patch] === state.only) &&
    (state.chosen.size === 0 || state.chosen.has(schemes[state.scheme].code(panel, patch)));
  const toScreen = (panel, index) => {
    const room = panel.side - 2 * PAD;
    return [
      (PAD + (panel.x[index] / FULL) * room) * panel.zoom + panel.left,
      (PAD + (1 - panel.y[index] / FULL) * room) * panel.zoom + panel.top,
    ];
  };
  const radius = (panel) => {
    const alone = Math.min(5, Math.max(1.9, 105 / Math.sqrt(panel.patch.length)));
    return alone * Math.min(1.8, Math.sqrt(panel.zoom)) * Math.min(1, Math.max(0.7, panel.side / 480));
  };

  const draw = (panel) => {
    const { pen, canvas } = panel;
    const ratio = window.devicePixelRatio || 1;
    panel.side = canvas.clientWidth;
    const pixels = Math.round(panel.side * ratio);
    if (canvas.width !== pixels) canvas.width = canvas.height = pixels;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, panel.side, panel.side);
    const size = radius(panel);
    const scheme = schemes[state.scheme];
    const dot = (index, colour, extent) => {
      const [x, y] = toScreen(panel, index);
      if (x < -9 || y < -9 || x > panel.side + 9 || y > panel.side + 9) return;
      pen.fillStyle = colour;
      pen.beginPath();
      pen.arc(x, y, extent, 0, 2 * Math.PI);
      pen.fill();
    };
    const shown = [];
    panel.patch.forEach((patch, index) => (isShown(panel, patch) ? shown.push(index) : dot(index, FAINT, size * 0.8)));
    pen.globalAlpha = 0.85;
    for (const index of shown) {
      const code = scheme.code(panel, panel.patch[index]);
      dot(index, code < 0 ? "#b4b8b6" : scheme.colours[code], size);
    }
    pen.globalAlpha = 1;
    const lit = panel.place.get(state.lit);
    if (lit === undefined) return;
    const [x, y] = toScreen(panel, lit);
    for (const [colour, extent, width] of [["#fff", size + 4, 5], ["#111", size + 4, 2]]) {
      pen.strokeStyle = colour;
      pen.lineWidth = width;
      pen.beginPath();
      pen.arc(x, y, extent, 0, 2 * Math.PI);
      pen.stroke();
    }
  };
  let waiting = false;
  const redraw = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      panels.forEach(draw);
    });
  };

  /* What a point is. */
  const line = (list, title, text, mark) => {
    const term = document.createElement("dt");
    const value = document.createElement("dd");
    const name = document.createElement("bdi");
    term.textContent = title;
    name.textContent = text;
    if (mark) name.className = mark;
    value.append(name);
    list.append(term, value);
  };
  const fill = (patch) => {
    const picture = tip.querySelector("canvas");
    picture.hidden = !data.sprite;
    if (data.sprite) {
      const { side, across, each } = data.sprite;
      const within = patch % each;
      const from = [(within % across) * side, Math.floor(within / across) * side];
      picture.width = picture.height = side;
      picture.getContext("2d").drawImage(sprites[Math.floor(patch / each)], ...from, side, side, 0, 0, side, side);
    }
    const list = tip.querySelector("dl");
    list.replaceChildren();
    for (const column of data.columns) {
      const code = column.codes[patch];
      if (code >= 0) line(list, column.title, column.names[code]);
    }
    for (const panel of panels) {
      const said = panel.place.has(patch) ? guess(panel, patch) : -1;
      if (said < 0) continue;
      const title = panels.length > 1 ? `predicted by ${panel.name}` : "predicted";
      line(list, title, label.names[said], said === label.codes[patch] ? "is-right" : "is-wrong");
    }
  };
  const light = (patch, x, y) => {
    if (patch !== state.lit) {
      state.lit = patch;
      tip.hidden = patch < 0;
      if (patch >= 0) fill(patch);
      tip.dataset.patch = patch;
      redraw();
    }
    if (patch < 0) return;
    const { width, height } = tip.getBoundingClientRect();
    const left = x + 18 + width > innerWidth ? x - 18 - width : x + 18;
    const top = y + 18 + height > innerHeight ? y - 18 - height : y + 18;
    tip.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
    tip.style.top = `${Math.max(8, Math.min(top, innerHeight - height - 8))}px`;
  };
  const find = (panel, x, y, reach) => {
    let best = -1;
    let least = reach * reach;
    panel.patch.forEach((patch, index) => {
      const [px, py] = toScreen(panel, index);
      const distance = (px - x) ** 2 + (py - y) ** 2;
      if (distance < least && isShown(panel, patch)) [best, least] = [patch, distance];
    });
    return best;
  };

  /* Zooming and panning. */
  const keep = (panel) => {
    const most = panel.side * (panel.zoom - 1);
    panel.left = Math.min(0, Math.max(-most, panel.left));
    panel.top = Math.min(0, Math.max(-most, panel.top));
    panel.canvas.classList.toggle("zoomed", panel.zoom > 1);
    redraw();
  };
  const zoom = (panel, factor, x = panel.side / 2, y = panel.side / 2) => {
    const next = Math.min(40, Math.max(1, panel.zoom * factor));
    panel.left = x - ((x - panel.left) * next) / panel.zoom;
    panel.top = y - ((y - panel.top) * next) / panel.zoom;
    panel.zoom = next;
    keep(panel);
  };
  const reset = (panel) => {
    Object.assign(panel, { zoom: 1, left: 0, top: 0 });
    light(-1);
    keep(panel);
  };
  const pan = (panel, dx, dy) => {
    panel.left += dx;
    panel.top += dy;
    keep(panel);
  };

  for (const panel of panels) {
    const { canvas } = panel;
    const held = new Map();
    let moved = 0;
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      held.set(event.pointerId, at(event));
      if (held.size === 1) moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const now = at(event);
      const before = held.get(event.pointerId);
      if (!before) {
        if (event.pointerType !== "touch") light(find(panel, ...now, REACH), event.clientX, event.clientY);
        return;
      }
      held.set(event.pointerId, now);
      moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
      const others = [...held].filter(([id]) => id !== event.pointerId).map(([, point]) => point);
      if (others.length) {
        const [x, y] = others[0];
        const reached = (point) => Math.max(1, Math.hypot(point[0] - x, point[1] - y));
        zoom(panel, reached(now) / reached(before), (now[0] + x) / 2, (now[1] + y) / 2);
        pan(panel, (now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
      } else if (panel.zoom > 1) {
        canvas.classList.add("dragged");
        pan(panel, now[0] - before[0], now[1] - before[1]);
      }
      if (moved > 6) light(-1);
    });
    const release = (event) => {
      held.delete(event.pointerId);
      if (!held.size) canvas.classList.remove("dragged");
    };
    canvas.addEventListener("pointerup", (event) => {
      const isTap = event.pointerType === "touch" && moved < 8 && held.size === 1;
      release(event);
      if (isTap) light(find(panel, ...at(event), 1.6 * REACH), event.clientX, event.clientY);
    });
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && light(-1));
    canvas.addEventListener("dblclick", () => reset(panel));
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (panel.zoom === 1 && event.deltaY > 0) return; // nothing to zoom out of: the page scrolls on
        event.preventDefault();
        zoom(panel, Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), ...at(event));
      },
      { passive: false },
    );
    canvas.addEventListener("keydown", (event) => {
      const step = 40;
      const does = {
        "+": () => zoom(panel, 1.4),
        "-": () => zoom(panel, 1 / 1.4),
        0: () => reset(panel),
        ArrowLeft: () => pan(panel, step, 0),
        ArrowRight: () => pan(panel, -step, 0),
        ArrowUp: () => pan(panel, 0, step),
        ArrowDown: () => pan(panel, 0, -step),
      }[event.key];
      if (!does || (panel.zoom === 1 && event.key.startsWith("Arrow"))) return;
      event.preventDefault();
      does();
    });
    const buttons = canvas.parentElement.querySelectorAll(".zoom button");
    [() => zoom(panel, 1.5), () => zoom(panel, 1 / 1.5), () => reset(panel)].forEach((does, number) =>
      buttons[number].addEventListener("click", does),
    );
    new ResizeObserver(() => {
      reset(panel);
      draw(panel);
    }).observe(canvas);
  }
  addEventListener("keydown", (event) => event.key === "Escape" && light(-1));
  addEventListener("scroll", () => light(-1), { passive: true });
  addEventListener("pointerdown", (event) => event.target.closest(".panel") || light(-1));

  /* The legend: as many points as there are of each name in any panel; a click isolates, another adds. */
  const count = (scheme) => {
    const counts = new Map();
    const seen = new Set();
    for (const panel of panels) {
      for (const patch of panel.patch) {
        if (state.only >= 0 && label.codes[patch] !== state.only) continue;
        const code = scheme.code(panel, patch);
        const key = `${code}/${patch}`;
        if (code < 0 || seen.has(key)) continue;
        seen.add(key);
        counts.set(code, (counts.get(code) || 0) + 1);
      }
    }
    return [...counts].sort(([a], [b]) => a - b);
  };
  const fillLegend = () => {
    const scheme = schemes[state.scheme];
    const counts = count(scheme);
    const perPanel = panels.length > 1 && (state.scheme === "predicted" || state.scheme === "right");
    legend.replaceChildren(
      ...counts.slice(0, MOST_CHIPS).map(([code, number]) => {
        const chip = document.createElement("button");
        chip.type = "button";
        chip.className = "chip";
        chip.dataset.code = code;
        chip.title = scheme.names[code];
        const [dot, name, amount] = ["dot", "name", "count"].map((kind) => {
          const part = document.createElement(kind === "name" ? "bdi" : "span");
          part.className = kind;
          return part;
        });
        dot.style.background = scheme.colours[code];
        name.textContent = scheme.names[code];
        amount.textContent = perPanel ? "" : number.toLocaleString("en-GB");
        chip.append(dot, name, amount);
        chip.addEventListener("click", () => {
          state.chosen.delete(code) || state.chosen.add(code);
          if (state.chosen.size === counts.length) state.chosen.clear();
          press();
        });
        return chip;
      }),
    );
    if (counts.length > MOST_CHIPS) {
      const more = document.createElement("span");
      more.className = "soft small";
      more.textContent = `and ${counts.length - MOST_CHIPS} more`;
      legend.append(more);
    }
    if (state.scheme === "site" && scheme.names.length > MOST_COLOURS) {
      const grey = document.createElement("span");
      grey.className = "soft small";
      grey.textContent = `The ${MOST_COLOURS} with most patches have colours, the others are grey. Click a name to see it alone.`;
      legend.append(grey);
    }
    press();
  };
  const press = () => {
    legend.classList.toggle("chosen", state.chosen.size > 0);
    for (const chip of legend.querySelectorAll(".chip")) {
      chip.setAttribute("aria-pressed", String(state.chosen.has(Number(chip.dataset.code))));
    }
    light(-1);
    redraw();
  };

  const choice = document.getElementById("colour-by");
  for (const key of ["label", "predicted", "right", "patient", "slide", "site"]) {
    if (!schemes[key] || !schemes[key].names.length) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = schemes[key].title;
    button.dataset.scheme = key;
    button.addEventListener("click", () => {
      state.scheme = key;
      state.chosen.clear();
      choose();
    });
    choice.append(button);
    state.scheme = state.scheme || key;
  }
  const choose = () => {
    for (const button of choice.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.dataset.scheme === state.scheme));
    }
    fillLegend();
  };
  const only = document.getElementById("only");
  only.parentElement.hidden = !label.names.length;
  label.names.forEach((name, code) => only.append(new Option(name, code)));
  only.addEventListener("change", () => {
    state.only = Number(only.value);
    state.chosen.clear();
    choose();
  });
  choose();
})();
