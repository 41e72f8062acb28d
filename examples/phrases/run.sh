#!/usr/bin/env bash
# Train a model without layers twice: on sentence pairs, then on these and on the short pairs that the first model cuts
# from them.
#
#   bash examples/phrases/run.sh PREFIX PAIR [option of fairseq-train ...]
#                PREFIX: aligned text PREFIX.LANG, for example text/en-fr; PAIR: en-fr
#   DICTIONARY=PREFIX in the environment: pairs of words, on which the second model is trained too
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -d .venv ] && export PATH="$PWD/.venv/bin:$PATH"

USAGE="usage: run.sh PREFIX PAIR [option of fairseq-train ...]"
PREFIX=${1:?$USAGE}
PAIR=${2:?$USAGE}
shift 2
SRC=${PAIR%-*} TGT=${PAIR#*-}
WORK=${WORK:-work/phrases-$PAIR}
VOCAB=${VOCAB:-16000} HELD_OUT=${HELD_OUT:-1000} UPDATES=${UPDATES:-1000}

# model FOLDER [option of lxsr prepare ...]: prepare, train and export, and score the held-out sentences of the first text
model() {
    lxsr prepare --work "$1" --lang-pairs "$PAIR" --vocab-size "$VOCAB" --valid-size "$HELD_OUT" "${@:2}"
    lxsr train "$1/data-bin" --recipe best --max-update "$UPDATES" --disable-validation --save-dir "$1/checkpoints" \
        ${OPTIONS[@]+"${OPTIONS[@]}"}
    lxsr export folder --checkpoint "$1/checkpoints/checkpoint_last.pt" --output "$1/model"
    lxsr eval xsr --model "$1/model" --data "$WORK/first/corpus/$PAIR/test" --lang-pairs "$PAIR" --metric nn
}

OPTIONS=("$@")
text=$WORK/first/corpus/$PAIR
model "$WORK/first" --data "$PREFIX" --test-size "$HELD_OUT"
python examples/phrases/phrases.py --model "$WORK/first/model" --source "$text/train.$SRC" --target "$text/train.$TGT" \
    --output-source "$WORK/short.$SRC" --output-target "$WORK/short.$TGT"
# The names are sources, which --source-temperature balances; by size, nine of ten pairs in a batch could be phrases.
OPTIONS=(--source-temperature 5 "$@")
model "$WORK/second" --data "text=$text/train" --data "phrases=$WORK/short" \
    ${DICTIONARY:+--data "dictionary=$DICTIONARY"} --exclude "$text/test.$SRC" "$text/test.$TGT" \
    --test-size 0
