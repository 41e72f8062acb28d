"use strict";
// The encoder and the search of the page: the pieces of a sentence, the mean of their embeddings, cosines.
const data = JSON.parse(document.getElementById("data").textContent);
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
const table = new Int8Array(bytes(data.table)), scales = new Float32Array(bytes(data.scales)); // [V, D], [V]
const corpus = new Int8Array(bytes(data.corpus)), order = data.order; // [N, D], [k, D]
const lengths = new Float32Array(bytes(data.lengths)); // [N], of the rows of `corpus`
const width = data.width;
const pieces = new Map(data.pieces.map((piece, number) => [piece, number]));
const UNKNOWN = -1;
const LONGEST = 4; // a letter with three marks
const HAN = /[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]/gu;

/** Whether SentencePiece composes letters to one: undivided ones in the canonical order, for it exchanges no marks. */
function isOne(letters) {
  const text = letters.join(""), parts = letters.map((letter) => letter.normalize("NFKD"));
  const ordered = parts.join("") === text.normalize("NFKD") && parts.every((part) => [...part].length === 1);
  return ordered && [...text.normalize("NFKC")].length === 1;
}

/** What is done to text before it is split: as in training. */
function normalize(text) {
  if (data.splitHan) text = text.replace(HAN, " $& ");
  text = text.replace(new RegExp(data.blanks, "gu"), " ").trim();
  if (data.lowercase) text = text.toLowerCase();
  const letters = [...text];
  let result = "";
  for (let start = 0, length; start < letters.length; start += length) {
    length = LONGEST;
    while (length > 1 && !isOne(letters.slice(start, start + length))) length--;
    const part = letters.slice(start, start + length).join("");
    result += part in data.letters ? data.letters[part] : part.normalize("NFKC");
  }
  return result.replace(/ +/g, " ").trim().replace(/^(?=.)| /gu, "\u2581");
}

/** Merge the neighbours whose union has the best score, the first of equal ones, until no union is a piece. */
function bytePairs(text) {
  const parts = [...text];
  for (;;) {
    let best = -Infinity, place = -1;
    for (let i = 0; i + 1 < parts.length; i++) {
      const number = pieces.get(parts[i] + parts[i + 1]);
      if (number !== undefined && data.scores[number] > best) [best, place] = [data.scores[number], i];
    }
    if (place < 0) return parts;
    parts.splice(place, 2, parts[place] + parts[place + 1]);
  }
}

/** The pieces with the largest sum of scores; a letter that is no piece has the score of an unknown one. */
function unigram(text) {
  const letters = [...text];
  const best = [0], from = [0];
  for (let end = 1; end <= letters.length; end++) {
    best[end] = -Infinity;
    let piece = "";
    for (let start = end - 1; start >= Math.max(0, end - data.longest); start--) {
      piece = letters[start] + piece;
      const number = pieces.get(piece);
      const score = number !== undefined ? data.scores[number] : start === end - 1 ? data.unknownScore : -Infinity;
      if (best[start] + score > best[end]) [best[end], from[end]] = [best[start] + score, start];
    }
  }
  const parts = [];
  for (let end = letters.length; end > 0; end = from[end]) parts.unshift(letters.slice(from[end], end).join(""));
  return parts;
}

/** Rows of the table, one for each piece; unknown pieces in a row count once. */
function encode(text) {
  const parts = data.kind === "bpe" ? bytePairs(normalize(text)) : unigram(normalize(text));
  const rows = [];
  let before = 0;
  for (const part of parts) {
    const number = pieces.has(part) ? pieces.get(part) : UNKNOWN;
    if (number !== UNKNOWN || before !== UNKNOWN) rows.push(number === UNKNOWN ? data.unknown : data.rows[number]);
    before = number;
  }
  return rows.slice(0, data.most);
}

/** The embedding of a sentence, length one, or null where it has no piece. */
function embed(text) {
  const rows = encode(text);
  if (!rows.length) return null;
  const sum = new Float64Array(width);
  rows.forEach((row, place) => {
    for (let unit = 0; unit < width; unit++) {
      let weight = 1;
      order.forEach((gate, k) => {
        weight += gate[unit] * Math.cos((Math.PI * (k + 1) * (place + 0.5)) / rows.length);
      });
      sum[unit] += weight * scales[row] * table[row * width + unit];
    }
  });
  const length = Math.hypot(...sum);
  return length ? sum.map((value) => value / length) : null;
}

/** The `count` nearest sentences: [cosine, number] each, the nearest first. */
function nearest(embedding, count) {
  const found = [];
  for (let row = 0; row < data.sentences.length; row++) {
    let cosine = 0;
    for (let unit = 0; unit < width; unit++) cosine += embedding[unit] * corpus[row * width + unit];
    found.push([cosine / lengths[row], row]);
  }
  return found.sort((one, other) => other[0] - one[0] || one[1] - other[1]).slice(0, count);
}

const query = document.getElementById("query"), list = document.getElementById("found");
function show() {
  const start = performance.now();
  const embedding = embed(query.value);
  const found = embedding ? nearest(embedding, 10) : [];
  list.replaceChildren(...found.map(([cosine, row]) => {
    const item = document.createElement("li"), score = document.createElement("span");
    score.className = "score";
    score.textContent = cosine.toFixed(2);
    item.append(score, data.sentences[row]);
    return item;
  }));
  const took = embedding ? `${(performance.now() - start).toFixed(0)} ms, ${data.sentences.length} sentences` : "";
  document.getElementById("took").textContent = took;
}
query.addEventListener("input", show);
show();
