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

const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";

async function inflate(base85) {  // five digits are four bytes, the highest first
  const value = new Uint8Array(128), size = Math.floor(base85.length * 4 / 5), padded = base85 + "~~~~";
  for (let i = 0; i < 85; i++) value[DIGITS.charCodeAt(i)] = i;
  const bytes = new DataView(new ArrayBuffer(size + 4));
  for (let i = 0, at = 0; at < size; i += 5, at += 4) {
    let number = 0;
    for (let k = 0; k < 5; k++) number = number * 85 + value[padded.charCodeAt(i + k)];
    bytes.setUint32(at, number);
  }
  const blob = new Blob([bytes.buffer.slice(0, size)]);
  return new Response(blob.stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
}

function embedded(id) {
  return document.getElementById(id).textContent.trim();
}
