"use strict";
/* A canvas onto a world that is panned and zoomed, by pointer or by keys, and on which a region can be drawn. */
class Pane {
  constructor(canvas, shape) {
    Object.assign(this, { canvas, shape, pen: canvas.getContext("2d"), world: [1, 1], centre: [0.5, 0.5], scale: 1 });
    Object.assign(this, { drawn: [], isTool: false, isFitted: true, most: 64, waiting: false });
    new ResizeObserver(() => (this.isFitted ? this.fit() : this.changed())).observe(canvas);
    this.listen();
  }
  get size() { return [this.canvas.clientWidth, this.canvas.clientHeight]; }
  get least() { return Math.min(this.size[0] / this.world[0], this.size[1] / this.world[1]) * 0.94; }
  toScreen([x, y]) {
    return [(x - this.centre[0]) * this.scale + this.size[0] / 2, (y - this.centre[1]) * this.scale + this.size[1] / 2];
  }
  toWorld([x, y]) {
    return [(x - this.size[0] / 2) / this.scale + this.centre[0], (y - this.size[1] / 2) / this.scale + this.centre[1]];
  }
  view() { return [...this.toWorld([0, 0]), ...this.toWorld(this.size)]; }
  fit() {
    Object.assign(this, { scale: this.least, centre: this.world.map((side) => side / 2), isFitted: true });
    this.changed();
  }
  go(centre, scale) {
    Object.assign(this, { centre, scale: this.bound(scale), isFitted: false });
    this.changed();
  }
  bound(scale) { return Math.min(this.most, Math.max(this.least, scale)); }
  zoom(factor, at = this.size.map((side) => side / 2)) {
    const [x, y] = this.toWorld(at);
    const scale = this.bound(this.scale * factor);
    const part = this.scale / scale;
    this.go([x + (this.centre[0] - x) * part, y + (this.centre[1] - y) * part], scale);
  }
  pan(dx, dy) {
    const moved = [this.centre[0] - dx / this.scale, this.centre[1] - dy / this.scale];
    this.go(moved.map((value, axis) => Math.min(this.world[axis], Math.max(0, value))), this.scale);
  }
  changed() { this.redraw(); }
  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.paint(); });
  }
  paint() {
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = this.size;
    if (!width) return;
    const [wide, tall] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== wide || this.canvas.height !== tall) Object.assign(this.canvas, { width: wide, height: tall });
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.pen.fillStyle = "#fff";
    this.pen.fillRect(0, 0, width, height);
    this.draw(this.pen, width, height);
    if (this.drawn.length > 1) this.trace(this.drawn.map((point) => this.toScreen(point)), "rgb(0 90 90 / 0.12)", "#0b6b66", 2);
    if (this.canvas.matches(":focus-visible")) this.cross(width / 2, height / 2);
  }
  trace(points, fill, stroke, width) {
    this.pen.beginPath();
    points.forEach(([x, y]) => this.pen.lineTo(x, y));
    this.pen.closePath();
    if (fill) { this.pen.fillStyle = fill; this.pen.fill(); }
    Object.assign(this.pen, { strokeStyle: stroke, lineWidth: width });
    this.pen.stroke();
  }
  cross(x, y) {
    for (const [colour, width] of [["#fff", 4], ["#111", 1.5]]) {
      this.trace([[x - 9, y], [x + 9, y]], null, colour, width);
      this.trace([[x, y - 9], [x, y + 9]], null, colour, width);
    }
  }
  /* An outline of a drag: all its points, or the rectangle between its ends. */
  extend(point, isFirst) {
    if (isFirst) this.drawn = [point];
    else if (this.shape === "outline") this.drawn.push(point);
    else {
      const [x, y] = this.drawn[0];
      this.drawn = [[x, y], [point[0], y], point, [x, point[1]]];
    }
    this.redraw();
  }
  corners() {
    const [xs, ys] = [0, 1].map((axis) => this.drawn.map((point) => point[axis]));
    return [Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)];
  }
  listen() {
    const { canvas } = this;
    const held = new Map();
    let moved = 0;
    let isDrawing = false;
    const at = (event) => [event.offsetX, event.offsetY];
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      held.set(event.pointerId, at(event));
      moved = 0;
      isDrawing = (this.isTool || event.shiftKey) && held.size === 1;
      if (isDrawing) this.extend(this.toWorld(at(event)), true);
    });
    canvas.addEventListener("pointermove", (event) => {
      const [now, before] = [at(event), held.get(event.pointerId)];
      if (!before) return this.hover(this.toWorld(now), event);
      held.set(event.pointerId, now);
      moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
      const other = [...held].find(([id]) => id !== event.pointerId);
      if (isDrawing) this.extend(this.toWorld(now), false);
      else if (other) {
        const reach = (point) => Math.max(1, Math.hypot(point[0] - other[1][0], point[1] - other[1][1]));
        this.zoom(reach(now) / reach(before), other[1]);
      } else if (moved > 3) this.pan(now[0] - before[0], now[1] - before[1]);
      return this.leave();
    });
    const release = (event) => held.delete(event.pointerId);
    canvas.addEventListener("pointerup", (event) => {
      release(event);
      if (isDrawing && moved > 6) this.region();
      else if (moved <= 6) {
        this.drawn = [];
        this.pick(this.toWorld(at(event)));
      }
      isDrawing = false;
    });
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", () => this.leave());
    for (const name of ["focus", "blur"]) canvas.addEventListener(name, () => this.redraw());
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), at(event));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const does = {
        "+": () => this.zoom(1.5), "=": () => this.zoom(1.5), "-": () => this.zoom(1 / 1.5), 0: () => this.fit(),
        ArrowLeft: () => this.pan(50, 0), ArrowRight: () => this.pan(-50, 0),
        ArrowUp: () => this.pan(0, 50), ArrowDown: () => this.pan(0, -50),
        Enter: () => this.pick(this.centre), s: () => this.selectView(), Escape: () => this.clear(),
      }[event.key];
      if (!does || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      does();
    });
    const does = [() => this.zoom(1.6), () => this.zoom(1 / 1.6), () => this.fit()];
    canvas.parentElement.querySelectorAll(".zoom button").forEach((button, number) => button.addEventListener("click", does[number]));
  }
  selectView() {
    const [x0, y0, x1, y1] = this.view();
    this.drawn = [[x0, y0], [x1, y0], [x1, y1], [x0, y1]];
    this.region();
  }
  clear() {
    this.drawn = [];
    this.redraw();
  }
}
