// A page has few colours: so many of them look the same, and make a much smaller picture.
async ([data, most]) => {
  const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
  const bitmap = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
  const { width, height } = bitmap;
  const drawing = new OffscreenCanvas(width, height).getContext("2d");
  drawing.drawImage(bitmap, 0, 0);
  const pixels = new Uint32Array(drawing.getImageData(0, 0, width, height).data.buffer);
  const counts = new Map();
  for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
  const parts = (pixel) => [pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255];
  // What has a colour of its own is worth more than one grey among many.
  const worth = ([pixel, count]) => {
    const all = parts(pixel);
    return count * (1 + (Math.max(...all) - Math.min(...all)) / 8);
  };
  const palette = [...counts].sort((a, b) => worth(b) - worth(a) || a[0] - b[0]).slice(0, most);
  const known = palette.map(([pixel]) => parts(pixel));
  const nearest = new Map();
  for (const pixel of counts.keys()) {
    const [r, g, b] = parts(pixel);
    let best = 0;
    let least = Infinity;
    known.forEach(([x, y, z], at) => {
      const far = (r - x) ** 2 + (g - y) ** 2 + (b - z) ** 2;
      if (far < least) [best, least] = [at, far];
    });
    nearest.set(pixel, best);
  }
  const rows = new Uint8Array((width + 1) * height);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      rows[y * (width + 1) + 1 + x] = nearest.get(pixels[y * width + x]);
    }
  }
  let text = "";
  for (let at = 0; at < rows.length; at += 8192) {
    text += String.fromCharCode(...rows.subarray(at, at + 8192));
  }
  return [width, height, known.flat(), btoa(text)];
}
