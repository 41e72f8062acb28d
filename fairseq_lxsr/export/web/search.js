"use strict";
// The encoder and the search of the page: the pieces of a sentence, the mean of their embeddings, cosines.
const data = JSON.parse(document.getElementById("data").textContent);
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
const table = new Int8Array(bytes(data.table)), scales = new Float32Array(bytes(data.scales)); // [V, D], [V]
const corpus = new Int8Array(bytes(data.corpus)), order = data.order; // [N, D], [k, D]
const lengths = new Float32Array(bytes(data.lengths)); // [N], of the rows of `corpus`
const width = data.width;
const pieces = new Map(data.pieces.map((piece, number) => [piece, number]));
const apart = data.pieces.every((piece) => piece.lastIndexOf("\u2581") <= 0); // no piece has a part of two words
const marks = new Set(data.marks); // numbers of pieces without a letter or digit
const UNKNOWN = -1;
const LONGEST = 4; // a letter with three marks
const JOINS = /^[\p{M}\u1161-\u1175\u11a8-\u11c2]$/u; // marks, and the jamo after the first of a syllable
const HAN = /[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]/gu;

/** Whether SentencePiece composes letters to one: undivided ones in the canonical order, for it exchanges no marks. */
function isOne(letters) {
  const text = letters.join(""), parts = letters.map((letter) => letter.normalize("NFKD"));
  const ordered = parts.join("") === text.normalize("NFKD") && parts.every((part) => [...part].length === 1);
  return ordered && [...text.normalize("NFKC")].length === 1;
}

/** Small letters that NFKC keeps: without a second dot, and of capitals in disguise too. */
function lower(text) {
  text = text.toLowerCase().replace(new RegExp(data.secondDot, "gu"), "$1");
  return text.replace(new RegExp(data.styled, "gu"), (letter) => {
    const plain = letter.normalize("NFKC"), small = plain.toLowerCase();
    return plain === small ? letter : small;
  });
}

/** What is done to text before it is split: as in training. */
function normalize(text) {
  for (const [pattern, replacement] of data.invisible) text = text.replace(new RegExp(pattern, "gu"), replacement);
  if (data.splitHan) text = text.replace(HAN, " $& ");
  text = text.replace(new RegExp(data.blanks, "gu"), " ").trim();
  if (data.lowercase) text = lower(text);
  const letters = [...text];
  let result = "";
  for (let start = 0, length; start < letters.length; start += length) {
    length = start + 1 < letters.length && JOINS.test(letters[start + 1].normalize("NFKD")) ? LONGEST : 1;
    while (length > 1 && !isOne(letters.slice(start, start + length))) length--;
    const part = letters.slice(start, start + length).join("");
    result += part in data.letters ? data.letters[part] : part.normalize("NFKC");
  }
  return result.replace(/ +/g, " ").trim().replace(/^(?=.)| /gu, "\u2581");
}

/**
 * Merge the neighbours whose union has the best score, the first of equal ones, until no union is a piece. A tree has
 * the best score of each half of the text, half of a half and so on, so that a merge costs its depth.
 */
function bytePairs(text) {
  const parts = [...text], half = 2 ** Math.ceil(Math.log2(parts.length + 1));
  const after = parts.map((_, i) => i + 1), before = parts.map((_, i) => i - 1); // the neighbours of each part
  const best = new Float64Array(2 * half).fill(-Infinity); // node i is above 2i and 2i + 1; part i is leaf half + i
  const score = (i) => {
    const number = after[i] < parts.length ? pieces.get(parts[i] + parts[after[i]]) : undefined;
    return number === undefined ? -Infinity : data.scores[number];
  };
  const above = (node) => { best[node] = Math.max(best[2 * node], best[2 * node + 1]); };
  const update = (i, value) => {
    best[half + i] = value;
    for (let node = (half + i) >> 1; node; node >>= 1) above(node);
  };
  parts.forEach((_, i) => { best[half + i] = score(i); });
  for (let node = half - 1; node; node--) above(node);
  while (best[1] > -Infinity) {
    let node = 1;
    while (node < half) node = best[2 * node] === best[1] ? 2 * node : 2 * node + 1;
    const place = node - half, other = after[place];
    parts[place] += parts[other];
    parts[other] = "";
    after[place] = after[other];
    if (after[place] < parts.length) before[after[place]] = place;
    update(other, -Infinity);
    update(place, score(place));
    if (place) update(before[place], score(before[place]));
  }
  return parts.filter((part) => part);
}

/** The pieces of the first words, as many as the encoder reads; of all words where a piece may go across them. */
function* piecesOf(text) {
  if (data.kind === "unigram") yield* unigram(text);
  else for (const word of apart ? text.match(/\u2581?[^\u2581]*/gu) : [text]) yield* bytePairs(word);
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
      const sum = Math.fround(best[start] + score); // SentencePiece adds up in 32 bits
      if (sum > best[end]) [best[end], from[end]] = [sum, start];
    }
  }
  const parts = [];
  for (let end = letters.length; end > 0; end = from[end]) parts.push(letters.slice(from[end], end).join(""));
  return parts.reverse();
}

/** Rows of the table, one for each piece; unknown pieces in a row count once. */
function encode(text) {
  return read(text).rows;
}

/** The rows, and whether any is known: a text with an unknown piece is empty where it has no known word. */
function read(text) {
  const rows = [];
  let before = 0, hasUnknown = false, hasWord = false;
  for (const part of piecesOf(normalize(text))) {
    if (hasWord && rows.length === data.most) break;
    const number = pieces.has(part) ? pieces.get(part) : UNKNOWN;
    const row = number === UNKNOWN ? data.unknown : data.rows[number];
    if (row === data.unknown) hasUnknown = true;
    else if (!marks.has(number)) hasWord = true;
    if (number !== UNKNOWN || before !== UNKNOWN) rows.push(row);
    before = number;
  }
  return {rows: rows.slice(0, data.most), isKnown: rows.length > 0 && (hasWord || !hasUnknown)};
}

/** The embedding of a sentence, length one, or null where it has no known piece. */
function embed(text) {
  const {rows, isKnown} = read(text);
  if (!isKnown) return null;
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
