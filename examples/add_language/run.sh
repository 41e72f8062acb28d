#!/usr/bin/env bash
# A trained model without layers learns one more language: pieces, first vectors, training on new and old pairs, model folder.
#
#   bash examples/add_language/run.sh CHECKPOINT PAIRS PREFIX [option of fairseq-train ...]
#                CHECKPOINT: of the old model, for example work/en-fr/checkpoints/checkpoint_last.pt
#                PAIRS: the new pair, its new language last, and old pairs to rehearse: en-cs,en-fr,en-de
#                PREFIX: aligned text PREFIX.LANG of all pairs, with {pair} in it: text/{pair}
#                options: those that the old model was trained with
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -d .venv ] && export PATH="$PWD/.venv/bin:$PATH"

USAGE="usage: run.sh CHECKPOINT PAIRS PREFIX [option of fairseq-train ...]"
CHECKPOINT=${1:?$USAGE}
PAIRS=${2:?$USAGE}
PREFIX=${3:?$USAGE}
shift 3
NEW=${PAIRS%%,*}
WORK=${WORK:-work/add-${NEW#*-}}
PIECES=${PIECES:-8000} HELD_OUT=${HELD_OUT:-1000} UPDATES=${UPDATES:-1000}

prepare=(lxsr prepare --work "$WORK" --data "$PREFIX" --lang-pairs "$PAIRS" --valid-size "$HELD_OUT" --test-size "$HELD_OUT")
"${prepare[@]}" --until clean
text=$WORK/corpus/$NEW/train
python examples/add_language/extend.py --checkpoint "$CHECKPOINT" --known "$text.${NEW%-*}" --new "$text.${NEW#*-}" \
    --pieces "$PIECES" --output "$WORK"
"${prepare[@]}" # takes the subwords that were made elsewhere as they are

lxsr train "$WORK/data-bin" --recipe best --lang-pairs "$PAIRS" --finetune-from-model "$WORK/start.pt" \
    --max-update "$UPDATES" --disable-validation --save-dir "$WORK/checkpoints" "$@"
lxsr export folder --checkpoint "$WORK/checkpoints/checkpoint_last.pt" --output "$WORK/model"
for pair in ${PAIRS//,/ }; do
    lxsr eval xsr --model "$WORK/model" --data "$WORK/corpus/$pair/test" --lang-pairs "$pair" --metric nn
done
