"use strict";
// Binary messages: uint32 length of the JSON, the JSON, then numbers. {"$": i} in the JSON stands for array i. The numbers
// of all arrays of a type are stored together, with shuffled bytes: all first bytes, then all second bytes.

const ARRAYS = { u1: Uint8Array, i1: Int8Array, u2: Uint16Array, i2: Int16Array, i4: Int32Array, f4: Float32Array, f8: Float64Array };

function decode(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const { meta, arrays } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const counts = {}, numbers = {}, used = {};
  for (const [type, count] of arrays) counts[type] = (counts[type] ?? 0) + count;
  let at = 4 + length;
  for (const type of Object.keys(ARRAYS)) {
    const count = counts[type] ?? 0, size = ARRAYS[type].BYTES_PER_ELEMENT;
    const bytes = new Uint8Array(buffer, at, count * size), plain = new Uint8Array(count * size);
    for (let k = 0; k < size; k++) for (let i = 0; i < count; i++) plain[i * size + k] = bytes[k * count + i];
    [numbers[type], used[type]] = [new ARRAYS[type](plain.buffer), 0];
    at += count * size;
  }
  const decoded = arrays.map(([type, count]) => numbers[type].subarray(used[type], (used[type] += count)));
  const restore = (value) => {
    if (Array.isArray(value)) return value.map(restore);
    if (value === null || typeof value !== "object") return value;
    if ("$" in value) return decoded[value.$];
    return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, restore(part)]));
  };
  return restore(meta);
}

async function inflate(base64) {
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
}

function embedded(id) {
  return document.getElementById(id).textContent.trim();
}
