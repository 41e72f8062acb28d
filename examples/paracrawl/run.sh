#!/usr/bin/env bash
# The recipe of Mao et al. 2021 with its settings: ParaCrawl v5.0, English with French, German, Spanish or Italian.
#
#   lxsr corpus get ParaCrawl-v5 --lang-pair en-fr --output text      (fetches it, PREFIX is text/ParaCrawl-v5.en-fr)
#   bash examples/paracrawl/run.sh fr PREFIX     PREFIX.en and PREFIX.fr: ParaCrawl, aligned, .gz or not
#   SMOKE=1 bash examples/paracrawl/run.sh ...   the same commands, a tiny model and few updates: does it run at all?
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -d .venv ] && export PATH="$PWD/.venv/bin:$PATH"

TGT=${1:?usage: run.sh fr|de|es|it PREFIX}
PREFIX=${2:?usage: run.sh fr|de|es|it PREFIX}
WORK=${WORK:-work/paracrawl-en-$TGT}

# 12 epochs, learning rate up for 3 of them; en-it has less text: 30 and 6
EPOCHS=12 WARMUP_EPOCHS=3
[ "$TGT" = it ] && EPOCHS=30 WARMUP_EPOCHS=6
ARCH=lxsr_base VOCAB=50000 VALID=10000 TEST=10000 BATCH=128
[ -n "${SMOKE:-}" ] && ARCH=lxsr_tiny VOCAB=200 VALID=50 TEST=50 EPOCHS=2 WARMUP_EPOCHS=1 BATCH=32

lxsr prepare --work "$WORK" --lang-pairs "en-$TGT" --data "$PREFIX" --vocab-size "$VOCAB" \
    --valid-size "$VALID" --test-size "$TEST" --lowercase --filters characters
PAIRS=$(wc -l < "$WORK/corpus/en-$TGT/train.en")
UPDATES_PER_EPOCH=$(((PAIRS + BATCH - 1) / BATCH))

# on a GPU add --fp16 or --bf16; the paper's took 12 GB and 24 minutes for 10,000 updates
fairseq-train "$WORK/data-bin" --user-dir fairseq_lxsr \
    --task xling_sent --lang-pairs "en-$TGT" --arch "$ARCH" --criterion xling_sent_loss \
    --objective ugt --target-weights types --gen-weight 1 --align-weight 2 --sim-weight 2 \
    --batch-size "$BATCH" --max-positions 200 --dropout 0.1 \
    --optimizer adam --lr 0.001 --weight-decay 1e-5 --clip-norm 0 \
    --lr-scheduler polynomial_decay --warmup-updates $((WARMUP_EPOCHS * UPDATES_PER_EPOCH)) \
    --total-num-update $((EPOCHS * UPDATES_PER_EPOCH)) --max-epoch "$EPOCHS" \
    --cpu-precision auto --seed "${SEED:-1}" --save-dir "$WORK/checkpoints" --no-epoch-checkpoints \
    --log-format simple --log-interval 100

lxsr export-model --checkpoint "$WORK/checkpoints/checkpoint_best.pt" --output "$WORK/model"
rm -f "$WORK/xsr.jsonl"
lxsr eval xsr --model "$WORK/model" --output "$WORK/xsr.jsonl" --published \
    --data "$WORK/corpus/en-$TGT/test" --lang-pairs "en-$TGT"
