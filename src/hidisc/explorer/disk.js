"use strict";
/* In a saved folder there is no server: answers are in saved.js, pictures are files beside the page. */
window.disk = (() => {
  const { saved } = window;
  const placeOf = new Map(saved.rows.map((row, place) => [row, place]));
  const findShown = ({ by, only }) => {
    const wanted = only ? new Set(String(only).split(",").map(Number)) : null;
    return saved.patches.map((_, place) => place).filter((place) => saved.patches[place].place && (!wanted || wanted.has(saved.codes[by][place])));
  };
  const answers = {
    cohort: () => saved.cohort,
    slide: ({ slide }) => saved.slides[slide],
    patch: ({ row }) => saved.patches[placeOf.get(row)],
    points: (view) => {
      const shown = findShown(view);
      const [x, y] = [0, 1].map((axis) => shown.map((place) => saved.patches[place].place[axis]));
      return { rows: shown.map((place) => saved.rows[place]), x, y, codes: shown.map((place) => saved.codes[view.by][place]), whole: true };
    },
    spot: (view) => {
      const [x, y, reach] = [(view.x0 + view.x1) / 2, (view.y0 + view.y1) / 2, (view.x1 - view.x0) / 2];
      const far = (place) => Math.hypot(saved.patches[place].place[0] - x, saved.patches[place].place[1] - y);
      const near = findShown(view).filter((place) => far(place) <= reach).sort((one, other) => far(one) - far(other));
      return { row: near.length ? saved.rows[near[0]] : -1 };
    },
    overlay: ({ slide, by }) => {
      const { names, colours, range } = saved.cohort.columns.find((column) => column.key === by);
      const codes = saved.slides[slide].rows.map((row) => saved.codes[by][placeOf.get(row)]);
      const remark = codes.some((code) => code >= 0) ? "" : "Nothing is painted: this slide has no values in this column.";
      return { codes, names, colours, range, remark, values: null };
    },
  };
  document.body.classList.add("on-disk");
  return {
    ask: async (name, details = {}) => answers[name](details),
    address: (name, { row, slide, level, column, line }) => {
      if (name === "patch.jpg") return `patches/${row}.jpg`;
      const top = saved.slides[slide]?.levels - 1;
      return `tiles/${slide}-${level ?? top}-${column ?? 0}-${line ?? 0}.jpg`;
    },
  };
})();
