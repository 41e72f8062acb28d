"use strict";
// Encodes a query in the browser (word pieces, then the mean of their embeddings), and finds the nearest sentences.
const data = JSON.parse([...document.getElementsByClassName("data")].map((part) => part.textContent).join(""));
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
// The embedding table [V, D] in 8 bits, or [V, D / 2] with two codes of 4 bits in a byte; and a scale for each row [V].
const table = data.bits === 4 ? new Uint8Array(bytes(data.table)) : new Int8Array(bytes(data.table));
const scales = new Float32Array(bytes(data.scales));
// Embeddings of the corpus [N, D] in 8 bits, and their lengths [N].
const corpus = new Int8Array(bytes(data.corpus));
const lengths = new Float32Array(bytes(data.lengths));
// Word-order coefficients [k, D].
const order = data.order;
const width = data.width;
const pieces = new Map(data.pieces.map((piece, number) => [piece, number]));
// Words can be split one by one if no piece spans two words.
const wordsAreSeparate = data.pieces.every((piece) => piece.lastIndexOf("\u2581") <= 0);
// Numbers of the pieces without a letter or digit.
const marks = new Set(data.marks);
const UNKNOWN = -1;
const foldsLetters = Object.keys(data.folded).length > 0;
// A letter may have up to three marks.
const LONGEST = 4;
// Marks, and the jamo after the first one of a syllable.
const JOINS = /^[\p{M}\u1161-\u1175\u11a8-\u11c2]$/u;
const HAN = /[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]/gu;

/** Return whether SentencePiece composes letters into one; it does not reorder marks, as NFKC does. */
function isOne(letters) {
  const text = letters.join("");
  const parts = letters.map((letter) => letter.normalize("NFKD"));
  const ordered = parts.join("") === text.normalize("NFKD") && parts.every((part) => [...part].length === 1);
  return ordered && [...text.normalize("NFKC")].length === 1;
}

/** Lower-case a text, including styled capitals that only NFKC makes plain, and drop the second dot of a letter. */
function lower(text) {
  text = text.toLowerCase().replace(new RegExp(data.secondDot, "gu"), "$1");
  return text.replace(new RegExp(data.styled, "gu"), (letter) => {
    const plain = letter.normalize("NFKC");
    const small = plain.toLowerCase();
    return plain === small ? letter : small;
  });
}

/** Replace letters of a normalized text by the letters that stand for them in the pieces. */
function folded(text) {
  if (!foldsLetters) return text;
  return [...text].map((letter) => data.folded[letter] ?? letter).join("");
}

/** Normalize a text as in training, before it is split. */
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
    result += part in data.letters ? data.letters[part] : folded(part.normalize("NFKC"));
  }
  for (const [sequence, replacement] of data.sequences) result = result.replaceAll(sequence, replacement);
  return result.replace(/ +/g, " ").trim().replace(/^(?=.)| /gu, "\u2581");
}

/**
 * Merge neighbours by score, the best first and the leftmost of equal ones, until no two of them form a piece.
 *
 * A binary tree holds the best score of every half, quarter and so on of the text, so that a merge takes logarithmic
 * time.
 */
function bytePairs(text) {
  const parts = [...text];
  const half = 2 ** Math.ceil(Math.log2(parts.length + 1));
  // The neighbours of each part.
  const after = parts.map((_, i) => i + 1);
  const before = parts.map((_, i) => i - 1);
  // Node i is the parent of 2i and 2i + 1; part i is leaf half + i.
  const best = new Float64Array(2 * half).fill(-Infinity);
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
    const place = node - half;
    const next = after[place];
    parts[place] += parts[next];
    parts[next] = "";
    after[place] = after[next];
    if (after[place] < parts.length) before[after[place]] = place;
    update(next, -Infinity);
    update(place, score(place));
    if (place) update(before[place], score(before[place]));
  }
  return parts.filter((part) => part);
}

/** Yield the pieces of a text, word by word if no piece spans two words. */
function* piecesOf(text) {
  if (data.kind === "unigram") yield* unigram(text);
  else for (const word of wordsAreSeparate ? text.match(/\u2581?[^\u2581]*/gu) : [text]) yield* bytePairs(word);
}

/** Return the pieces with the largest sum of scores; a letter that is no piece has the score of an unknown one. */
function unigram(text) {
  const letters = [...text];
  const best = [0];
  const from = [0];
  for (let end = 1; end <= letters.length; end++) {
    best[end] = -Infinity;
    let piece = "";
    for (let start = end - 1; start >= Math.max(0, end - data.longest); start--) {
      piece = letters[start] + piece;
      const number = pieces.get(piece);
      const score = number !== undefined ? data.scores[number] : start === end - 1 ? data.unknownScore : -Infinity;
      // SentencePiece adds in 32 bits.
      const sum = Math.fround(best[start] + score);
      if (sum > best[end]) [best[end], from[end]] = [sum, start];
    }
  }
  const parts = [];
  for (let end = letters.length; end > 0; end = from[end]) parts.push(letters.slice(from[end], end).join(""));
  return parts.reverse();
}

/** Return the rows of the table, one for each piece; adjacent unknown pieces count once. */
function encode(text) {
  return read(text).rows;
}

/** Return the rows, and whether the text is known: with an unknown piece, it needs a known word. */
function read(text) {
  const rows = [];
  let before = 0;
  let hasUnknown = false;
  let hasWord = false;
  for (const part of piecesOf(normalize(text))) {
    const number = pieces.has(part) ? pieces.get(part) : UNKNOWN;
    const row = number === UNKNOWN ? data.unknown : data.rows[number];
    if (row === data.unknown) hasUnknown = true;
    else if (!marks.has(number)) hasWord = true;
    if (number !== UNKNOWN || before !== UNKNOWN) rows.push(row);
    before = number;
  }
  return {rows, isKnown: rows.length > 0 && (hasWord || !hasUnknown)};
}

/** Return a code of the table. Of 4 bits, the first half of a row has the low bits of its bytes, and codes begin at -8. */
function codeOf(row, unit) {
  if (data.bits !== 4) return table[row * width + unit];
  const half = width / 2;
  const byte = table[row * half + (unit % half)];
  return (unit < half ? byte & 15 : byte >> 4) - 8;
}

/** Return the embedding of a sentence, scaled to unit length, or null if no piece is known. */
function embed(text) {
  const {rows, isKnown} = read(text);
  if (!isKnown) return null;
  const sum = new Float64Array(width);
  rows.forEach((row, place) => {
    const cosines = order.map((gate, k) => Math.cos((Math.PI * (k + 1) * (place + 0.5)) / rows.length));
    for (let unit = 0; unit < width; unit++) {
      let weight = 1;
      order.forEach((gate, k) => {
        weight += gate[unit] * cosines[k];
      });
      sum[unit] += weight * scales[row] * codeOf(row, unit);
    }
  });
  const length = Math.hypot(...sum);
  return length ? sum.map((value) => value / length) : null;
}

/** Return the `count` nearest sentences as [cosine, number], the nearest first. */
function nearest(embedding, count) {
  const neighbours = [];
  for (let row = 0; row < data.sentences.length; row++) {
    let cosine = 0;
    for (let unit = 0; unit < width; unit++) cosine += embedding[unit] * corpus[row * width + unit];
    neighbours.push([cosine / lengths[row], row]);
  }
  return neighbours.sort((a, b) => b[0] - a[0] || a[1] - b[1]).slice(0, count);
}

const query = document.getElementById("query");
const list = document.getElementById("found");

/** Show the sentences that are nearest to the query. */
function show() {
  const start = performance.now();
  const embedding = embed(query.value);
  const neighbours = embedding ? nearest(embedding, 10) : [];
  list.replaceChildren(...neighbours.map(([cosine, row]) => {
    const item = document.createElement("li");
    const score = document.createElement("span");
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
