"use strict";
/* The map of all patches: points near by, a picture from the server where they are too many to draw. */
class PatchMap extends Pane {
  constructor(canvas, calls) {
    super(canvas, "outline");
    Object.assign(this, calls, { points: null, picture: null, selected: [], chosen: null, asked: 0 });
    this.most = 1e5;
  }
  /* What decides the colours: a column, the codes that are shown, and a patch to compare with. */
  show(colouring, colours) {
    const asked = this.asked + 1; // an answer that is still on its way has the codes of another column
    Object.assign(this, { colouring, colours, asked, points: null, picture: null });
    this.changed();
  }
  changed() {
    this.redraw();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load(), 60);
  }
  async load() {
    if (!this.colouring || !this.size[0] || this.points?.whole) return;
    const [x0, y0, x1, y1] = this.view();
    const asked = ++this.asked;
    const view = { ...this.colouring, x0, y0, x1, y1 };
    const answer = await this.ask("points", view);
    if (!answer || asked !== this.asked) return;
    if (!answer.many) Object.assign(this, { points: answer, picture: null });
    else {
      const image = new Image();
      const [width, height] = this.size.map((side) => Math.round(Math.min(1500, Math.max(16, side))));
      image.src = this.address("density.png", { ...view, width, height });
      await image.decode().catch(() => null);
      if (asked !== this.asked) return;
      Object.assign(this, { points: null, picture: { image, x0, y0, x1, y1 } });
    }
    this.redraw();
    this.canvas.dataset.drawn = answer.many ? "density" : answer.rows.length;
  }
  draw(pen, width, height) {
    if (this.picture) {
      const [left, top] = this.toScreen([this.picture.x0, this.picture.y0]);
      const [right, bottom] = this.toScreen([this.picture.x1, this.picture.y1]);
      pen.imageSmoothingEnabled = false;
      pen.drawImage(this.picture.image, left, top, right - left, bottom - top);
    }
    if (this.points) {
      const { x, y, codes } = this.points;
      const radius = Math.min(6, Math.max(1.6, 120 / Math.sqrt(x.length))) * Math.min(2, Math.max(1, (this.scale / this.least) ** 0.3));
      for (let point = 0; point < x.length; point += 1) {
        const [left, top] = this.toScreen([x[point], y[point]]);
        if (left < -9 || top < -9 || left > width + 9 || top > height + 9) continue;
        pen.fillStyle = codes[point] < 0 ? "#b4b8b6" : this.colours[codes[point]];
        if (radius < 2) pen.fillRect(left - radius, top - radius, 2 * radius, 2 * radius);
        else { pen.beginPath(); pen.arc(left, top, radius, 0, 7); pen.fill(); }
      }
    }
    const isFew = this.selected.length < 100; // of many, rings would hide the points
    for (const place of this.selected) if (place) this.ring(pen, place, 4, 1, isFew ? undefined : [["rgb(0 0 0 / 0.35)", 0]]);
    if (this.chosen) this.ring(pen, this.chosen, 9, 2.5);
  }
  ring(pen, place, radius, width, strokes = [["#fff", 2], ["#111", 0]]) {
    const [x, y] = this.toScreen(place);
    for (const [strokeStyle, more] of strokes) {
      Object.assign(pen, { strokeStyle, lineWidth: width + more });
      pen.beginPath();
      pen.arc(x, y, radius, 0, 7);
      pen.stroke();
    }
  }
  /* The patch nearest to a point of the map, within 12 px. */
  async find([x, y]) {
    const reach = 12 / this.scale;
    const answer = await this.ask("spot", { ...this.colouring, x0: x - reach, y0: y - reach, x1: x + reach, y1: y + reach });
    return answer ? answer.row : -1;
  }
  async hover(point, event) {
    this.wanted = [point, event.clientX, event.clientY];
    if (this.isAsking) return;
    this.isAsking = true;
    while (this.wanted) {
      const [place, x, y] = this.wanted;
      this.wanted = null;
      const row = await this.find(place);
      if (!this.hasLeft) this.tip(row, x, y);
      this.hasLeft = false;
    }
    this.isAsking = false;
  }
  leave() {
    this.hasLeft = Boolean(this.isAsking);
    this.wanted = null;
    this.tip(-1);
  }
  async pick(point) {
    const row = await this.find(point);
    if (row >= 0) this.choose(row, "map");
  }
  region() {
    const { by, only, row } = this.colouring;
    const step = Math.ceil(this.drawn.length / 1000);
    const polygon = this.drawn.filter((_, number) => number % step === 0);
    this.select({ polygon, ...(row === undefined && only ? { by, only } : {}) });
  }
}
