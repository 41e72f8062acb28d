#!/usr/bin/env bash
# Train a model without layers in two halves: on random pairs, then on batches of pairs that are near each other in the
# first half's embeddings.
#
#   bash examples/near/run.sh PREFIX PAIR [option of fairseq-train ...]
#                PREFIX: aligned text PREFIX.LANG, for example text/en-fr; PAIR: en-fr
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -d .venv ] && export PATH="$PWD/.venv/bin:$PATH"

USAGE="usage: run.sh PREFIX PAIR [option of fairseq-train ...]"
PREFIX=${1:?$USAGE}
PAIR=${2:?$USAGE}
shift 2
WORK=${WORK:-work/near-$PAIR}
VOCAB=${VOCAB:-16000} HELD_OUT=${HELD_OUT:-1000} UPDATES=${UPDATES:-2500}
OPTIONS=("$@")

# half NAME [option of lxsr train ...]: write checkpoints and a model folder to WORK/NAME
half() {
    lxsr train "$WORK/data-bin" --recipe best --max-update $((UPDATES / 2)) --disable-validation --save-dir "$WORK/$1/checkpoints" \
        "${@:2}" ${OPTIONS[@]+"${OPTIONS[@]}"}
    lxsr export folder --checkpoint "$WORK/$1/checkpoints/checkpoint_last.pt" --output "$WORK/$1/model"
}

lxsr prepare --work "$WORK" --data "$PREFIX" --lang-pairs "$PAIR" --vocab-size "$VOCAB" --valid-size "$HELD_OUT" \
    --test-size "$HELD_OUT"
half first
for language in "${PAIR%-*}" "${PAIR#*-}"; do
    lxsr embed --model "$WORK/first/model" --input "$WORK/corpus/$PAIR/train.$language" \
        --output "$WORK/near/train.$PAIR.$language.npy"
done
half second --batches near --near-embeddings "$WORK/near" --finetune-from-model "$WORK/first/checkpoints/checkpoint_last.pt"
lxsr eval xsr --model "$WORK/second/model" --data "$WORK/corpus/$PAIR/test" --lang-pairs "$PAIR" --metric nn --rerank 10
