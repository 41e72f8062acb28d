#!/usr/bin/env bash
# The recipe of Mao et al. 2021 with its settings: ParaCrawl v5.0, English with French, German, Spanish or Italian.
#
#   lxsr corpus get ParaCrawl-v5 --lang-pair en-fr --output text      downloads it: PREFIX is text/ParaCrawl-v5.en-fr
#   bash examples/paracrawl/run.sh fr PREFIX [option of fairseq-train ...]
#                                                PREFIX.en and PREFIX.fr: ParaCrawl, aligned, .gz or not
#   EUROPARL='text/Europarl-v8.{pair}' bash ...    table 4: ugt + align + sim, 2,000 queries among 200,000 sentences
#   MLDOC=mldoc bash ...                           table 3: also trains ugt alone, and classifies documents with it
#   SMOKE=1 bash examples/paracrawl/run.sh ...   the same commands with a tiny model and few updates, to check that they run
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -d .venv ] && export PATH="$PWD/.venv/bin:$PATH"

USAGE="usage: run.sh fr|de|es|it PREFIX [option of fairseq-train ...]"
TGT=${1:?$USAGE}
PREFIX=${2:?$USAGE}
shift 2
WORK=${WORK:-work/paracrawl-en-$TGT}

# Or released. The recipes of Italian are for less text.
RECIPE=${RECIPE:-paper}
[ "$TGT" = it ] && RECIPE=${RECIPE}_it
VOCAB=50000 VALID=10000 TEST=10000
if [ -n "${SMOKE:-}" ]; then
    VOCAB=200 VALID=50 TEST=50
    set -- --arch lxsr_tiny --batch-size 32 --max-epoch 2 "$@"
fi

lxsr prepare --work "$WORK" --lang-pairs "en-$TGT" --data "$PREFIX" --vocab-size "$VOCAB" \
    --valid-size "$VALID" --test-size "$TEST" --lowercase --filters characters

# train FOLDER [option ...]: trains and exports FOLDER/model. On a GPU, add --fp16 or --amp.
train() {
    folder=$1
    shift
    lxsr train "$WORK/data-bin" --recipe "$RECIPE" --lang-pairs "en-$TGT" --save-dir "$folder/checkpoints" "$@"
    lxsr export folder --checkpoint "$folder/checkpoints/checkpoint_best.pt" --output "$folder/model"
}

train "$WORK" "$@"
rm -f "$WORK/xsr.jsonl"
lxsr eval xsr --model "$WORK/model" --output "$WORK/xsr.jsonl" \
    --data "$WORK/corpus/en-$TGT/test" --lang-pairs "en-$TGT"
if [ -n "${EUROPARL:-}" ]; then
    lxsr eval xsr --model "$WORK/model" --output "$WORK/xsr.jsonl" --data "$EUROPARL" --lang-pairs "en-$TGT"
fi
lxsr compare "$WORK/xsr.jsonl" --published
if [ -n "${MLDOC:-}" ]; then
    # Table 3 is of ugt alone, with a linear classifier.
    train "$WORK/ugt" --align-weight 0 --sim-weight 0 "$@"
    rm -f "$WORK/mldoc.jsonl"
    lxsr eval mldoc --model "$WORK/ugt/model" --output "$WORK/mldoc.jsonl" --data "$MLDOC" --langs "en,$TGT" \
        --classifier linear
    lxsr compare "$WORK/mldoc.jsonl" --published
fi
