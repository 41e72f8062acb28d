#!/usr/bin/env bash
# From text to searchable sentence embeddings: the steps of `lxsr run` as separate commands.
#
#   bash examples/quickstart/run.sh                              20,000 everyday sentences
#   DATA=prefix SRC=en TGT=de bash examples/quickstart/run.sh    your own aligned text, prefix.en and prefix.de (or a .tsv)
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -d .venv ] && export PATH="$PWD/.venv/bin:$PATH"

# Language codes.
SRC=${SRC:-en}
TGT=${TGT:-fr}
# Your own text, or `catalogues` for the gettext catalogues of this machine.
DATA=${DATA:-fairseq_lxsr/preparation/demo.en-fr.tsv.gz}
# Pairs of the test set.
HELD_OUT=${HELD_OUT:-1000}
# Word pieces, which both languages share.
VOCAB=${VOCAB:-8000}
# A recipe of `lxsr recipes`: best, best_64, or paper (paper_small): two layers and the losses of the paper.
RECIPE=${RECIPE:-best}
WORK=${WORK:-work/$SRC-$TGT}

# On a cluster, WORK may be a variable with another meaning.
if [ -e "$WORK/checkpoints" ] && [ ! -e "$WORK/prepare.json" ]; then
    echo "run.sh: error: WORK=$WORK has checkpoints of another command; name another WORK" >&2
    exit 2
fi

if [ "$RECIPE" = paper ]; then
    RECIPE=paper_small
    # Batches of 128 pairs: 4 minutes on two cores with bfloat16.
    UPDATES=${UPDATES:-1500}
fi
# Without UPDATES, the recipe chooses the length by the number of pairs.
LENGTH=${UPDATES:+--max-update $UPDATES}
# This refuses an unknown recipe.
# shellcheck disable=SC2086
lxsr train "$WORK/data-bin" --recipe "$RECIPE" ${LENGTH:---max-update 1} --print > /dev/null
WHAT=$(lxsr recipes | sed -n "s/^$RECIPE  *//p")

step() { printf '\n== %s\n' "$*"; }

step "1/5 Text: collect, clean and split it, learn word pieces, binarise"
if [ "$DATA" = catalogues ]; then DATA=; fi
lxsr prepare --work "$WORK" --lang-pairs "$SRC-$TGT" ${DATA:+--data "$DATA"} \
    --valid-size "$((HELD_OUT / 2))" --test-size "$HELD_OUT" --vocab-size "$VOCAB" --lowercase

step "2/5 Training: $WHAT (complete log: $WORK/checkpoints/train.log)"
rm -rf "$WORK/checkpoints"
# shellcheck disable=SC2086
lxsr train "$WORK/data-bin" --recipe "$RECIPE" $LENGTH --lang-pairs "$SRC-$TGT" \
    --save-dir "$WORK/checkpoints"

step "3/5 Model folder: everything that encoding needs, without fairseq"
lxsr export folder --checkpoint "$WORK/checkpoints/checkpoint_best.pt" --output "$WORK/model"

step "4/5 Embeddings of the held-out sentences"
for language in "$SRC" "$TGT"; do
    lxsr embed --model "$WORK/model" --input "$WORK/corpus/$SRC-$TGT/test.$language" --output "$WORK/test.$language.npy"
done

step "5/5 Evaluation: is a sentence's nearest neighbour its translation? (percent)"
TEST="$WORK/corpus/$SRC-$TGT/test"
rm -f "$WORK/untrained.jsonl" "$WORK/trained.jsonl"
echo "untrained:"
lxsr eval xsr --model "$WORK/model#untrained" --data "$TEST" --lang-pairs "$SRC-$TGT" --output "$WORK/untrained.jsonl"
echo "trained:"
lxsr eval xsr --model "$WORK/model" --data "$TEST" --lang-pairs "$SRC-$TGT" --output "$WORK/trained.jsonl"
python examples/quickstart/search.py "$WORK/model" "$TEST.$SRC" "$TEST.$TGT"
if python -c "import plotly, sklearn" 2> /dev/null; then echo; lxsr report "$WORK"; fi

step "Results"
cat <<END
$WORK/corpus/$SRC-$TGT   train, valid and test text
$WORK/data-bin      input of fairseq-train, with dictionary and SentencePiece model
$WORK/checkpoints   fairseq checkpoints, to continue the training
$WORK/model         the model folder
$WORK/test.*.npy    embeddings, float32
$WORK/*.jsonl       the scores
$WORK/report.html   a report of everything, for a browser

What to try next
  lxsr embed --model $WORK/model --input your-sentences.txt --output vectors.npy
  lxsr index --model $WORK/model --input $WORK/corpus/$SRC-$TGT/train.$TGT --output $WORK/index
  lxsr search --index $WORK/index "no such file"
  lxsr compare $WORK/untrained.jsonl $WORK/trained.jsonl
  DATA=prefix SRC=en TGT=de make demo     your own text: prefix.en and prefix.de, aligned line by line
  UPDATES=6000 make demo                  train longer
  RECIPE=paper_small make demo            two layers and the losses of the paper
  examples/paracrawl                      the settings of the paper
END
