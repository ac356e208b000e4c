"use strict";
/* The page: the table of slides, and the map and the slide beside each other, which follow each other.
   Names come from files of others: they are only ever set as textContent. */
(async () => {
  const $ = (id) => document.getElementById(id);
  const session = Date.now().toString(36); // pictures that the browser keeps are of this visit
  const SIMILARITY = "computed:similarity";
  /* A number for this tab, kept when the page is loaded again: each browser undoes its own changes. */
  const visitor = window.disk ? "" : sessionStorage.getItem("visitor") ?? Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join("-");
  if (visitor) sessionStorage.setItem("visitor", visitor);
  const address = window.disk?.address ?? ((name, details) => {
    const known = Object.entries(details).filter(([, value]) => value !== undefined && value !== "");
    return `${name}?${new URLSearchParams([...known, ["v", session]])}`;
  });
  const say = (sentence, isWrong = false) => {
    $("status").textContent = sentence;
    $("status").classList.toggle("wrong", isWrong);
  };
  const read = async (asking, as = "json") => {
    try {
      const answer = await asking;
      if (answer.ok) return await answer[as]();
      say(await answer.text(), true);
    } catch {
      say("The explorer does not answer: its command has ended. Start `hidisc explore` again.", true);
    }
    return null;
  };
  const ask = window.disk?.ask ?? ((name, details = {}) => read(fetch(address(name, details))));
  const tell = (name, details, as) =>
    read(fetch(name, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(details) }), as);
  const make = (tag, text, ...names) => {
    const element = document.createElement(tag);
    if (text !== undefined && text !== null) element.textContent = text;
    element.classList.add(...names);
    return element;
  };
  const save = (blob, name) => {
    if (!blob) return;
    const link = make("a");
    Object.assign(link, { href: URL.createObjectURL(blob), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const number = (value) => value.toLocaleString("en-GB");
  const data = await ask("cohort");
  if (!data) return;
  /* What the store calls a patient, a slide and a patch: [one, several]; such as scan for slide. */
  const words = data.words;
  const count = (value, level, adjective = "") => `${number(value)} ${adjective}${words[level][value === 1 ? 0 : 1]}`;
  for (const heading of document.querySelectorAll("[data-level]")) {
    const word = words[heading.dataset.level]["several" in heading.dataset ? 1 : 0];
    heading.textContent = "first" in heading.dataset ? word[0].toUpperCase() + word.slice(1) : word;
  }
  const state = { sort: "", isDown: false, patient: null, isGoing: false, chosen: null, region: null, only: new Set(), told: new Map() };
  $("store").textContent = data.store;
  const encoder = data.encoder ? `, seen by ${data.encoder}` : "";
  $("summary").textContent = `${count(data.patients, "patient")}, ${count(data.slides.length, "slide")}, ${count(data.patches, "patch")}${encoder}`;
  $("map-name").textContent = `${count(data.vectors, "patch")}, near where the encoder finds them alike`;
  $("warnings").hidden = !data.warnings.length;
  $("warnings").textContent = data.warnings.join(" ");

  const turn = (name) => {
    for (const view of ["cohort", "look"]) {
      $(view).hidden = view !== name;
      document.querySelector(`[data-view=${view}]`).setAttribute("aria-pressed", String(view === name));
    }
  };
  /* The place in the page is in its address, by numbers rather than names, so that loading it again and Back return to
     it: the cohort, a patient, a slide, a patch. */
  const here = () => {
    if ($("look").hidden) return state.patient === null ? "#cohort" : `#patient=${state.patient}`;
    if (!view.data) return "#map";
    return `#slide=${view.data.slide}${state.chosen?.slide === view.data.slide ? `&patch=${state.chosen.row}` : ""}`;
  };
  const keep = () => {
    if (!state.isGoing && location.hash !== here()) history.pushState(null, "", here());
  };
  const go = async () => {
    const asked = new URLSearchParams(location.hash.slice(1));
    state.isGoing = true;
    if (asked.has("patch")) await choose(Number(asked.get("patch")));
    else if (asked.has("slide")) {
      forget();
      await openSlide(Number(asked.get("slide")));
    } else if (asked.has("map")) turn("look");
    else {
      showPatient(asked.has("patient") ? Number(asked.get("patient")) : null);
      turn("cohort");
    }
    state.isGoing = false;
  };
  window.addEventListener("popstate", go);
  document.querySelectorAll("[data-view]").forEach((button) => button.addEventListener("click", () => { turn(button.dataset.view); keep(); }));

  /* The cohort: a table that is searched, filtered and sorted, or a wall of thumbnails. */
  const MOST_ROWS = 400;
  const isOn = (id) => $(id).getAttribute("aria-pressed") === "true";
  const listed = () => (isOn("by-patient") ? data.people : data.slides);
  const findColumns = (list) => Object.keys(list[0] || {}).filter((name) => list.some((one) => one[name]));
  const filters = {};
  for (const name of ["label", "split", "site", "predicted", "result"].filter((name) => findColumns(data.slides).includes(name))) {
    const choice = make("select");
    choice.append(new Option("all", ""), ...[...new Set(data.slides.map((slide) => slide[name]))].sort().map((value) => new Option(value || "none", value || " ")));
    choice.addEventListener("change", () => listSlides());
    const label = make("label", `${name === "label" ? "class" : name} `);
    label.append(choice);
    $("filters").append(label);
    filters[name] = choice;
  }
  const HEADS = { label: "class", slides: words.slide[1], patches: words.patch[1] };
  const listHeads = () => $("slides").tHead.rows[0].replaceChildren(...findColumns(listed()).map((name) => {
    const head = make("th");
    const button = make("button", HEADS[name] ?? words[name]?.[0] ?? name);
    button.type = "button";
    button.addEventListener("click", () => {
      Object.assign(state, { isDown: state.sort === name && !state.isDown, sort: name });
      listSlides();
    });
    head.dataset.column = name;
    if (["slides", "patches", "dropped", "score"].includes(name)) head.classList.add("number");
    head.append(button);
    return head;
  }));
  const findSlides = () => {
    const sought = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const patient = isOn("by-patient") ? undefined : data.people[state.patient]?.patient;
    const found = listed().map((slide, place) => ({ slide, place })).filter(({ slide }) =>
      (patient === undefined || slide.patient === patient) &&
      sought.every((word) => `${slide.patient} ${slide.slide ?? ""}`.toLowerCase().includes(word)) &&
      Object.entries(filters).every(([name, choice]) => !choice.value || (slide[name] || " ") === choice.value));
    if (state.sort) {
      const value = ({ slide }) => slide[state.sort];
      const order = (a, b) => (typeof a === "number" || typeof b === "number" ? (a ?? -1) - (b ?? -1) : String(a).localeCompare(String(b), "en", { numeric: true }));
      found.sort((one, other) => (state.isDown ? -1 : 1) * order(value(one), value(other)));
    }
    return found;
  };
  const openButton = (open, ...content) => {
    const button = make("button", null, "open");
    button.type = "button";
    button.append(...content);
    button.addEventListener("click", open);
    return button;
  };
  /* The slides of one patient, or (null) of all. */
  const showPatient = (number) => {
    state.patient = data.people[number] ? number : null;
    if (state.patient !== null) $("by-patient").setAttribute("aria-pressed", "false");
    $("whose").hidden = state.patient === null;
    const { patient = "", label, predicted, result } = data.people[state.patient] ?? {};
    $("whose").querySelector("bdi").textContent = [patient, label, predicted && `predicted ${predicted}`, result].filter(Boolean).join(", ");
    listHeads();
    listSlides();
  };
  const listSlides = () => {
    const found = findSlides();
    const some = found.slice(0, MOST_ROWS);
    const isWall = isOn("wall") && !isOn("by-patient");
    const shown = findColumns(listed());
    $("wall").hidden = isOn("by-patient");
    $("table-csv").href = isOn("by-patient") ? "patients.csv" : "slides.csv";
    $("slides").hidden = isWall;
    $("thumbnails").hidden = !isWall;
    for (const head of $("slides").tHead.rows[0].cells) {
      head.setAttribute("aria-sort", head.dataset.column !== state.sort ? "none" : state.isDown ? "descending" : "ascending");
    }
    $("slides").tBodies[0].replaceChildren(...(isWall ? [] : some).map(({ slide, place }) => {
      const row = make("tr");
      row.append(...shown.map((name) => {
        const value = slide[name];
        const cell = make("td", null, ...(typeof value === "number" ? ["number"] : []), ...(name === "result" && value ? [`is-${value}`] : []));
        if (name === "slide") cell.append(openButton(() => openSlide(place), make("bdi", value)));
        else if (name === "patient" && isOn("by-patient")) cell.append(openButton(() => { showPatient(place); keep(); }, make("bdi", value)));
        else cell.append(make("bdi", typeof value !== "number" ? value : name === "score" ? value.toFixed(3) : number(value)));
        return cell;
      }));
      if (!isOn("by-patient")) row.addEventListener("dblclick", () => openSlide(place));
      return row;
    }));
    $("thumbnails").replaceChildren(...(isWall ? some : []).map(({ slide, place }) => {
      const picture = make("img");
      Object.assign(picture, { loading: "lazy", alt: "", src: address("thumbnail.jpg", { slide: place }) });
      return openButton(() => openSlide(place), picture, make("bdi", slide.slide), make("bdi", [slide.label, slide.result].filter(Boolean).join(", "), "soft"));
    }));
    const left = found.length - some.length;
    $("more").textContent = found.length ? (left ? `and ${count(left, isOn("by-patient") ? "patient" : "slide", "more ")}: search or filter to see them` : "") : `No ${isOn("by-patient") ? "patient" : "slide"} is like that.`;
  };
  $("search").addEventListener("input", listSlides);
  for (const id of ["wall", "by-patient"]) {
    $(id).addEventListener("click", () => {
      $(id).setAttribute("aria-pressed", String(!isOn(id)));
      if (id === "by-patient") showPatient(null);
      else listSlides();
      keep();
    });
  }
  $("whose").querySelector("button").addEventListener("click", () => { showPatient(null); keep(); });

  /* What is under the cursor. */
  const describe = async (row) => {
    if (!state.told.has(row)) state.told.set(row, await ask("patch", { row }));
    return state.told.get(row);
  };
  const fill = (list, facts) => list.replaceChildren(...facts.flatMap(([title, text]) => [make("dt", title), make("dd", text)]));
  const tip = async (row, x, y, more = []) => {
    const box = $("tip");
    state.tipped = row;
    if (row < 0) { box.hidden = true; return; }
    const patch = await describe(row);
    if (!patch || state.tipped !== row) return;
    if (box.dataset.row !== String(row)) box.querySelector("img").src = address("patch.jpg", { row });
    fill(box.querySelector("dl"), [...more, ...patch.facts].slice(0, 14));
    box.dataset.row = row;
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    box.style.left = `${Math.max(4, x + 16 + width > innerWidth ? x - 16 - width : x + 16)}px`;
    box.style.top = `${Math.max(4, Math.min(y + 16, innerHeight - height - 4))}px`;
  };

  /* Choosing a patch shows it on the map and in its slide; choosing a region shows its patches everywhere. */
  const choose = async (row) => {
    const patch = await describe(row);
    if (!patch) return;
    turn("look");
    state.chosen = patch;
    aim({ rows: [row] }, "to the chosen patch");
    $("no-patch").hidden = true;
    $("patch-shown").hidden = false;
    $("patch-picture").src = address("patch.jpg", { row, side: 320 });
    fill($("facts"), patch.facts);
    Object.assign(map, { chosen: patch.place, selected: [], drawn: [] });
    if (view.data?.slide !== patch.slide) await openSlide(patch.slide);
    Object.assign(view, { chosen: row, selected: new Set(), drawn: [] });
    view.showBox(patch.corner);
    if (patch.place) {
      const [x, y] = map.toScreen(patch.place);
      if (x < 0 || y < 0 || x > map.size[0] || y > map.size[1]) map.go(patch.place, map.scale);
    }
    if (map.colouring?.by === SIMILARITY) await paint();
    await overlay();
    map.redraw();
    keep();
    say("");
  };
  const forget = () => {
    state.chosen = null;
    map.chosen = null;
    view.chosen = -1;
    $("no-patch").hidden = false;
    $("patch-shown").hidden = true;
    map.clear();
  };
  /* What a name is given to. */
  const aim = (region, what) => {
    state.region = region;
    $("named").textContent = what;
  };
  const mark = ({ places, rows }) => {
    map.selected = places;
    view.selected = new Set(rows);
    map.redraw();
    view.redraw();
  };
  const select = async (region) => {
    if (window.disk) return;
    const answer = await tell("select", { region });
    if (!answer) return;
    aim(region, `to the selected ${answer.count === 1 ? words.patch[0] : count(answer.count, "patch")}`);
    mark(answer);
    list(`${count(answer.count, "patch")} selected`, answer.count > 60 ? "60 of them:" : "", answer, region, 60);
    say("");
  };
  /* Patches below map and slide; `region` is what they are of. */
  const list = (title, remark, found, region = { rows: found.rows }, most = 500) => {
    $("found-title").textContent = title;
    $("found-remark").textContent = remark;
    state.listed = region;
    $("found-tools").hidden = !found.rows.length;
    $("alike-found").hidden = !data.vectors;
    $("select-found").hidden = region === state.region;
    const step = Math.max(1, Math.ceil(found.rows.length / most));
    const some = found.rows.map((_, place) => place).filter((place) => place % step === 0);
    $("gallery").replaceChildren(...some.map((place) => {
      const [patient, slide, label] = found.captions[place];
      const button = make("button");
      button.type = "button";
      button.dataset.row = found.rows[place];
      const picture = make("img");
      Object.assign(picture, { loading: "lazy", alt: "", src: address("patch.jpg", { row: found.rows[place] }) });
      if (found.values) button.append(picture, make("b", found.values[place].toFixed(3)));
      else button.append(picture);
      button.append(make("bdi", label ?? ""), make("bdi", slide ?? patient, "soft"));
      button.addEventListener("click", () => choose(found.rows[place]));
      return button;
    }));
  };
  const calls = { ask, address, tip, choose, select, paintedBy: () => ($("strength").value > 0 ? $("overlay").value : "") };
  const map = new PatchMap($("map"), calls);
  const view = new SlideView($("slide"), { ...calls, tileSide: data.tile });
  const other = new SlideView($("other"), { ...calls, tileSide: data.tile });
  const panes = { map, slide: view };
  map.clear = view.clear = () => {
    if (state.chosen) aim({ rows: [state.chosen.row] }, "to the chosen patch");
    else aim(null, "to the patch that you choose, or to those that you select");
    Object.assign(map, { selected: [], drawn: [] });
    Object.assign(view, { selected: new Set(), drawn: [] });
    map.redraw();
    view.redraw();
  };
  /* The slide that is shown stays on the left, in place of the map, and another can be opened on the right. */
  $("beside").addEventListener("click", () => {
    const isBeside = $("other-pane").hidden && Boolean(view.data);
    $("other-pane").hidden = !isBeside;
    $("map-pane").hidden = isBeside || !data.vectors;
    $("beside").setAttribute("aria-pressed", String(isBeside));
    Object.assign(view, { partner: null });
    Object.assign(other, { partner: null });
    if (!isBeside) return;
    $("other-name").textContent = $("slide-name").textContent;
    other.open(view.data);
    Object.assign(other, { overlay: view.overlay, partner: view });
    view.partner = other;
    view.go(view.centre, view.scale);
    say("Now open another slide: from the cohort, or from what is alike. Both are moved together.");
  });
  async function openSlide(place) {
    const slide = await ask("slide", { slide: place });
    if (!slide) return;
    const isNew = $("look").hidden;
    turn("look");
    if (isNew) $("slide-pane").scrollIntoView({ block: "nearest" }); // the table may have been scrolled far down
    $("slide-name").textContent = `${slide.name} (${slide.patient})`;
    $("source").textContent = slide.source;
    view.open(slide);
    keep();
    await overlay();
    say("");
  }

  /* Colours: of the map by a column, of the slide by a column; a click on a name shows that name alone. */
  const givenKey = () => `given:${$("set").value.trim()}`;
  const columnOf = (key) => data.columns.find((column) => column.key === key);
  const choices = () => {
    for (const [id, first] of [["colour", []], ["overlay", [new Option("nothing", "")]]]) {
      const before = $(id).value;
      const similar = data.encoder && !window.disk ? [new Option("similarity", SIMILARITY)] : [];
      $(id).replaceChildren(...first, ...data.columns.map((column) => new Option(column.title, column.key)), ...similar);
      if ([...$(id).options].some((option) => option.value === before)) $(id).value = before;
    }
    const names = data.columns.filter((column) => column.key === givenKey()).flatMap((column) => column.names);
    $("labels").replaceChildren(...names.map((name) => new Option(name, name)));
    $("labels-csv").href = address("labels.csv", { set: $("set").value });
  };
  const paint = async () => {
    const key = $("colour").value;
    if (key === SIMILARITY) {
      if (!state.chosen) return say("Choose a patch first: the others are then coloured by how much they are like it.", true);
      const similar = await ask("overlay", { slide: state.chosen.slide, by: key, row: state.chosen.row });
      if (!similar || $("colour").value !== key) return null; // another column was asked for since
      chips("legend", similar.names, similar.colours, undefined, undefined, similar.range);
      return map.show({ by: key, row: state.chosen.row }, similar.colours);
    }
    const column = columnOf(key);
    chips("legend", column.names, column.colours, column.counts, isolate, column.range);
    return map.show({ by: key, only: [...state.only].join(",") }, column.colours);
  };
  const MOST_CHIPS = 120;
  const chips = (id, names, colours, counts, click, range) => {
    $(id).classList.toggle("bar", Boolean(range));
    $(id).dataset.low = range ? range[0].toFixed(2) : "";
    $(id).dataset.high = range ? range[1].toFixed(2) : "";
    if (range) { // a bar of the colours, low to high; every step of it can be shown alone
      $(id).replaceChildren(...names.map((name, code) => {
        const step = make(click ? "button" : "span", null, "step");
        step.style.background = colours[code];
        step.title = counts ? `${name}: ${count(counts[code], "patch")}` : name;
        if (!click) return step;
        step.type = "button";
        step.setAttribute("aria-label", step.title);
        step.setAttribute("aria-pressed", String(state.only.has(code)));
        step.addEventListener("click", () => click(code));
        return step;
      }));
      return;
    }
    const known = names.map((name, code) => [name, code]).filter(([, code]) => !counts || counts[code]);
    const left = known.length - MOST_CHIPS;
    $(id).replaceChildren(...known.slice(0, MOST_CHIPS).map(([name, code]) => {
      const chip = make(click ? "button" : "span", null, "chip");
      const dot = make("span", null, "dot");
      dot.style.background = colours[code];
      chip.append(dot, make("bdi", name), make("span", counts ? number(counts[code]) : "", "soft"));
      if (!click) return chip;
      chip.type = "button";
      chip.setAttribute("aria-pressed", String(state.only.has(code)));
      chip.addEventListener("click", () => click(code));
      return chip;
    }), ...(left > 0 ? [make("span", `and ${left} more`, "soft")] : []));
  };
  const isolate = (code) => {
    if (!state.only.delete(code)) state.only.add(code);
    paint();
  };
  const overlay = async () => {
    const by = $("overlay").value;
    if (!view.data) return;
    if (by === SIMILARITY && !state.chosen) { say("Choose a patch first: the others are then painted by how much they are like it.", true); return; }
    for (const pane of view.partner ? [view, other] : [view]) {
      const { data: slide } = pane;
      const painted = by ? await ask("overlay", { slide: slide.slide, by, row: by === SIMILARITY ? state.chosen.row : undefined }) : null;
      if (pane.data !== slide || $("overlay").value !== by) return; // another slide or column was asked for since
      pane.overlay = painted;
      pane.redraw();
    }
    const present = view.overlay ? view.overlay.names.map((_, code) => view.overlay.codes.filter((own) => own === code).length) : [];
    const { names = [], colours = [], range, remark = "" } = view.overlay ?? {};
    chips("slide-legend", remark ? [] : names, colours, present, undefined, remark ? null : range);
    $("painted").textContent = remark;
  };
  $("colour").addEventListener("change", () => { state.only.clear(); paint(); });
  $("overlay").addEventListener("change", overlay);
  const look = () => {
    for (const pane of [view, other]) Object.assign(pane, { strength: Number($("strength").value), isBoxed: $("boxes").checked }).redraw();
  };
  $("strength").addEventListener("input", look);
  $("boxes").addEventListener("change", look);
  document.querySelectorAll("[data-tool]").forEach((button) => button.addEventListener("click", () => {
    const pane = panes[button.dataset.tool];
    pane.isTool = !pane.isTool;
    button.setAttribute("aria-pressed", String(pane.isTool));
  }));
  document.querySelectorAll("[data-save]").forEach((button) => button.addEventListener("click", () => {
    panes[button.dataset.save].canvas.toBlob((blob) => save(blob, `${button.dataset.save}.png`));
  }));
  $("boxes-file").addEventListener("click", async () => {
    if (!view.data) return say("Open a slide first.", true);
    return save(await read(fetch(address("boxes.geojson", { slide: view.data.slide })), "blob"), `${view.data.name}.geojson`);
  });

  /* What is alike, and names. */
  const findAlike = async (region) => {
    const answer = await tell("alike", { region, apart: $("apart").value, most: 24 });
    if (!answer) return;
    mark(answer);
    list("Most alike", `The nearest patches, by cosine similarity, of ${$("apart").selectedOptions[0].text}.`, answer);
  };
  $("alike").addEventListener("submit", (event) => { event.preventDefault(); findAlike({ rows: [state.chosen.row] }); });
  $("alike-found").addEventListener("click", () => findAlike(state.listed));
  const named = (answer, sentence) => {
    if (!answer) return;
    data.columns = answer.columns;
    state.told.clear();
    const before = $("colour").value;
    choices();
    if (before === givenKey()) { state.only.clear(); paint(); }
    overlay();
    $("saved").textContent = [sentence(answer), ...(answer.remarks ?? [])].join(" ");
  };
  const give = async (label) => {
    if (!state.region) return say("Choose a patch or select some first.", true);
    const set = $("set").value.trim();
    const answer = await tell("name", { set, label, region: state.region, visitor });
    const isOne = answer?.count === 1;
    const what = label === null ? `${isOne ? "has" : "have"} no name any more` : `${isOne ? "is" : "are"} now “${label}”`;
    return named(answer, () => `${count(answer.count, "patch")} ${what}. Saved in labels/${set}.parquet.`);
  };
  $("naming").addEventListener("submit", (event) => { event.preventDefault(); give($("label").value); });
  $("unname").addEventListener("click", () => give(null));
  $("undo").addEventListener("click", async () => named(await tell("undo", { set: $("set").value.trim(), visitor }), ({ count: undone, stayed }) => {
    if (!stayed) return `Your last change (${count(undone, "patch")}) was taken back.`;
    const kept = `${count(stayed, "patch")} ${stayed === 1 ? "was" : "were"} named anew elsewhere since, and ${stayed === 1 ? "keeps its name" : "keep their names"}.`;
    return `Of your last change, ${undone ? count(undone, "patch") : "nothing"} ${undone > 1 ? "were" : "was"} taken back: ${kept}`;
  }));
  $("uncertain").addEventListener("click", async () => {
    say("Fitting a probe …");
    const answer = await tell("uncertain", { set: $("set").value.trim() });
    if (answer) { list("To name next", answer.remark, answer); say(""); }
  });
  $("set").addEventListener("change", choices);
  $("select-found").addEventListener("click", () => select(state.listed));
  $("patches-csv").addEventListener("click", async () => save(await tell("patches.csv", { region: state.listed }, "blob"), "patches.csv"));
  /* Regions of the slide that is shown, drawn in QuPath: their classes become names. */
  $("drawn").addEventListener("click", () => (view.data ? $("regions").click() : say("Open the slide of the regions first.", true)));
  $("regions").addEventListener("change", async () => {
    const [file] = $("regions").files;
    $("regions").value = "";
    if (!file) return;
    if (file.size > data.longest) { say(`${file.name} is larger than ${number(data.longest / 2 ** 20)} MB. Export only the annotations of this slide from QuPath.`, true); return; }
    const set = $("set").value.trim();
    const answer = await tell("regions", { set, slide: view.data.slide, file: await file.text(), visitor });
    named(answer, () => `${count(answer.count, "patch")} of ${view.data.name} named by ${file.name}: ${answer.names.join(", ")}. Saved in labels/${set}.parquet.`);
  });

  choices();
  listHeads();
  listSlides();
  if (data.vectors) await paint();
  else $("map-pane").hidden = true;
  await go();
  document.body.dataset.ready = "yes";
})();
