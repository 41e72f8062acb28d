#!/usr/bin/env bash
# One model of nine languages, small enough to ship: text, pieces, training, model folder, scores, card.
#
#   DATA=DIR bash examples/pretrained/run.sh [option of fairseq-train ...]
#                        DIR has the text that sources.json names, and evaluation text in DIR/eval
#   SMOKE=1 DATA=DIR ... the same commands, few pieces and updates: does it run at all?
# After an interruption the same command goes on where it stopped.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -d .venv ] && export PATH="$PWD/.venv/bin:$PATH"

DATA=${DATA:?DATA=DIR, the folder of the text}
WORK=${WORK:-work/nine}
SOURCES=${SOURCES:-examples/pretrained/sources.json}
PAIRS=${PAIRS:-en-fr,en-de,en-es,en-it,en-pt,en-ru,en-zh,en-ja}
PUD=${PUD:-en-fr,en-de,en-es,en-it,en-zh,fr-de,es-it,fr-zh} # three pairs without English, which no text was trained on
TATOEBA=${TATOEBA-fr:fra de:deu es:spa it:ita pt:por ru:rus zh:cmn ja:jpn}
MODEL=$WORK/lxsr-nine

VOCAB=64000 HELD_OUT=1000 WIDTH=256 UPDATES=12000 BATCH=1024
if [ -n "${SMOKE:-}" ]; then
    VOCAB=70 HELD_OUT=40 WIDTH=16 UPDATES=20 BATCH=64
fi

step() { printf '\n== %s\n' "$*"; }

step "1/5 Text: collect, clean and split it, learn word pieces, binarise"
# every time, because DATA and SOURCES may be others; `lxsr prepare` does nothing where the text is the same
python examples/pretrained/collect.py --data "$DATA" --sources "$SOURCES" --output "$WORK/text"
# as YAML reads them, which takes \ud83d\ude00 for two letters
quoted() { python -c 'import json, sys; print(*(json.dumps(name, ensure_ascii=False) for name in sys.argv[1:]), sep=", ")' "$@"; }
cat "$WORK/text/pairs.yaml" - > "$WORK/prepare.yaml" <<END
work: $(quoted "$WORK")
cleaning: {filters: {identical: }, exclude: [$(quoted "$DATA"/eval/*.txt.gz)]}
subwords: {vocab_size: $VOCAB, character_coverage: 0.9995}
valid_size: $HELD_OUT
test_size: $HELD_OUT
END
lxsr prepare "$WORK/prepare.yaml"

step "2/5 Training"
lxsr train "$WORK/data-bin" --recipe best --lang-pairs "$PAIRS" --encoder-embed-dim "$WIDTH" --batch-size "$BATCH" \
    --max-update "$UPDATES" --sampling-temperature 2 --source-temperature 5 --disable-validation \
    --rare-subword-dropout 0 --save-interval-updates 1000 --keep-interval-updates 1 \
    --save-dir "$WORK/checkpoints" "$@" 2>&1 | tee -a "$WORK/train.log"

step "3/5 Model folder, a byte a weight"
lxsr export folder --checkpoint "$WORK/checkpoints/checkpoint_last.pt" --output "$MODEL" --dtype int8

step "4/5 Scores: is a sentence's nearest neighbour its translation? (percent)"
rm -f "$WORK/scores.jsonl"
score() { lxsr eval "$1" --model "$MODEL" --output "$WORK/scores.jsonl" "${@:2}"; }
score xsim --data "$WORK/corpus/{pair}/test" --lang-pairs "$PAIRS"                 # text of the same kind
score xsr --data "$DATA/eval/pud.{lang}" --lang-pairs "$PUD" --metric nn           # news and encyclopedia
for codes in $TATOEBA; do                                                          # everyday sentences, short
    prefix=$DATA/eval/tatoeba-v1.${codes#*:}-eng
    score tatoeba --source "$prefix.${codes#*:}.txt.gz" --target "$prefix.eng.txt.gz" --lang-pairs "${codes%:*}-en"
done

step "5/5 Card"
lxsr export card --model "$MODEL" --scores "$WORK/scores.jsonl" --sources "$SOURCES"
tar -czf "$WORK/lxsr-nine.tar.gz" -C "$WORK" lxsr-nine
sha256sum "$WORK/lxsr-nine.tar.gz"
