"use strict";
/* One slide: tiles as they arrive, boxes of the patches over them, a scale bar, and what is under the cursor. */
class SlideView extends Pane {
  constructor(canvas, calls) {
    super(canvas, "box");
    Object.assign(this, calls, { data: null, tiles: new Map(), overlay: null, strength: 0.5, isBoxed: true, selected: new Set(), chosen: -1 });
    this.most = 8;
  }
  open(data) {
    Object.assign(this, { data, tiles: new Map(), overlay: null, world: [data.width, data.height], drawn: [] });
    this.canvas.dataset.slide = data.slide;
    this.fit();
  }
  /* Of two slides beside each other, either leads the other: both have one scale in micrometres, and move together. */
  lead(does) {
    const { partner } = this;
    if (!partner || this.isLed) return;
    partner.isLed = true;
    does(partner, this.scale * (this.data.mpp && partner.data.mpp ? partner.data.mpp / this.data.mpp : 1));
    partner.isLed = false;
  }
  bound(scale) {
    if (this.isLed) return scale;
    return this.partner ? Math.min(this.most, Math.max(this.least / 4, scale)) : super.bound(scale);
  }
  go(centre, scale) {
    super.go(centre, scale);
    this.lead((partner, matched) => partner.go(partner.centre, matched));
  }
  fit() {
    super.fit();
    this.lead((partner, matched) => partner.go(partner.centre, matched));
  }
  zoom(factor, at = this.size.map((side) => side / 2)) {
    const before = this.partner?.toWorld(at);
    super.zoom(factor, at);
    this.lead((partner, matched) => {
      const after = partner.toWorld(at);
      partner.go(partner.centre.map((value, axis) => value + before[axis] - after[axis]), matched);
    });
  }
  pan(dx, dy) {
    super.pan(dx, dy);
    this.lead((partner) => partner.pan(dx, dy));
  }
  /* Show a patch in the middle, as large as a thumb. */
  showBox([x, y]) {
    const { extent } = this.data;
    this.go([x + extent / 2, y + extent / 2], Math.max(this.scale, 110 / extent));
  }
  tile(level, column, line) {
    const key = `${level}/${column}/${line}`;
    if (this.tiles.has(key)) return this.tiles.get(key);
    const image = new Image();
    const { tiles } = this;
    image.onload = () => tiles === this.tiles && this.redraw();
    image.src = this.address("tile.jpg", { slide: this.data.slide, level, column, line });
    tiles.set(key, image);
    if (tiles.size > 600) tiles.delete(tiles.keys().next().value);
    return image;
  }
  draw(pen, width, height) {
    if (!this.data) return;
    const { levels, extent, corners, dropped, mpp, finest = 0 } = this.data;
    const [x0, y0, x1, y1] = this.view();
    const fine = Math.min(levels - 1, Math.max(finest, Math.floor(Math.log2(1 / (this.scale * (window.devicePixelRatio || 1))) + 0.4)));
    pen.imageSmoothingEnabled = this.scale < 2;
    /* coarser tiles that are there already lie below, until the fine ones have come */
    for (const level of [levels - 1, ...[2, 1, 0].map((up) => fine + up).filter((level) => level < levels - 1)]) {
      const side = this.tileSide * 2 ** level;
      for (let line = Math.max(0, Math.floor(y0 / side)); line * side < Math.min(y1, this.world[1]); line += 1) {
        for (let column = Math.max(0, Math.floor(x0 / side)); column * side < Math.min(x1, this.world[0]); column += 1) {
          if (level !== fine && level !== levels - 1 && !this.tiles.has(`${level}/${column}/${line}`)) continue;
          const image = this.tile(level, column, line);
          if (!image.complete || !image.naturalWidth) continue;
          const [left, top] = this.toScreen([column * side, line * side]);
          const [right, bottom] = this.toScreen([column * side + image.naturalWidth * 2 ** level, line * side + image.naturalHeight * 2 ** level]);
          pen.drawImage(image, left, top, right - left, bottom - top);
        }
      }
    }
    const side = extent * this.scale;
    const each = (list, does) => list.forEach(([x, y], place) => {
      if (x > x1 || y > y1 || x + extent < x0 || y + extent < y0) return;
      does(...this.toScreen([x, y]), place);
    });
    if (this.overlay) {
      pen.globalAlpha = this.strength;
      each(corners, (left, top, place) => {
        const code = this.overlay.codes[place];
        if (code < 0) return;
        pen.fillStyle = this.overlay.colours[code];
        pen.fillRect(left, top, side, side);
      });
      pen.globalAlpha = 1;
    }
    if (this.isBoxed) {
      Object.assign(pen, { lineWidth: 1, strokeStyle: "rgb(170 40 20 / 0.55)" });
      pen.setLineDash([3, 3]);
      each(dropped, (left, top) => pen.strokeRect(left, top, side, side));
      pen.setLineDash([]);
      pen.strokeStyle = "rgb(0 110 105 / 0.75)";
      each(corners, (left, top) => pen.strokeRect(left, top, side, side));
    }
    each(corners, (left, top, place) => {
      const row = this.data.rows[place];
      const width = row === this.chosen ? 4 : this.selected.has(row) ? 2.5 : 0;
      if (!width) return;
      for (const [colour, more] of [["#fff", 2], ["#111", 0]]) {
        Object.assign(pen, { strokeStyle: colour, lineWidth: width + more });
        pen.strokeRect(left, top, side, side);
      }
    });
    if (mpp) this.bar(pen, height, mpp);
  }
  bar(pen, height, mpp) {
    const wanted = (130 / this.scale) * mpp;
    const power = 10 ** Math.floor(Math.log10(wanted));
    const um = [5, 2, 1].map((factor) => factor * power).find((length) => length <= wanted);
    const length = (um / mpp) * this.scale;
    const text = um >= 1000 ? `${um / 1000} mm` : `${um} µm`;
    Object.assign(pen, { fillStyle: "rgb(255 255 255 / 0.85)" });
    pen.fillRect(10, height - 40, length + 20, 30);
    Object.assign(pen, { fillStyle: "#111", font: "12px system-ui, sans-serif" });
    pen.fillRect(20, height - 18, length, 3);
    pen.fillText(text, 20, height - 24);
    Object.assign(this.canvas.dataset, { bar: text, um: (mpp / this.scale).toPrecision(6) });
  }
  /* The patch whose box a point is in; -1 where there is none. */
  find([x, y]) {
    if (!this.data) return -1;
    const { corners, extent } = this.data;
    return corners.findIndex(([left, top]) => x >= left && y >= top && x < left + extent && y < top + extent);
  }
  hover(point, event) {
    const place = this.find(point);
    const value = place >= 0 && this.overlay?.values ? [["painted", this.overlay.values[place].toFixed(3)]] : [];
    this.tip(place < 0 ? -1 : this.data.rows[place], event.clientX, event.clientY, value);
  }
  leave() { this.tip(-1); }
  pick(point) {
    const place = this.find(point);
    if (place >= 0) this.choose(this.data.rows[place], "slide");
  }
  region() {
    if (this.data) this.select({ slide: this.data.slide, box: this.corners(), by: this.paintedBy() });
  }
}
