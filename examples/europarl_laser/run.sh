#!/usr/bin/env bash
# LASER, cLASER, T-LASER and cT-LASER after Li and Mak 2020: five languages of Europarl, translated into English and Spanish.
#
#   bash examples/europarl_laser/run.sh SYSTEM           laser_1, laser_5, laser_6, claser_6, tlaser or ctlaser; the text is
#                                                        prepared first, as preprocess/europarl-five-languages.yaml says
#   SMOKE=1 TEXT='text/{pair}' bash ...                  the same commands, a tiny model and few updates: does it run at all?
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -d .venv ] && export PATH="$PWD/.venv/bin:$PATH"

SYSTEM=${1:?usage: run.sh laser_1|laser_5|laser_6|claser_6|tlaser|ctlaser}
WORK=work/europarl # as the YAML file says
[ -n "${SMOKE:-}" ] && WORK=${SMOKE_WORK:-work/europarl-smoke}
PAIRS=de-en,de-es,en-es,fr-en,fr-es,it-en,it-es

# 128k tokens an update: of one GPU 16,000 at a time, eight times
WARMUP=4000 EPOCHS=${EPOCHS:-10} MAX_TOKENS=${MAX_TOKENS:-16000} UPDATE_FREQ=${UPDATE_FREQ:-8}
[ -n "${SMOKE:-}" ] && WARMUP=20 EPOCHS=1 MAX_TOKENS=500 UPDATE_FREQ=1
case $SYSTEM in
laser_[156]) ARCH=$SYSTEM LR=0.001 DROPOUT=0.1 CONSTRAINT=none ;;
claser_6) ARCH=laser_6 LR=0.001 DROPOUT=0.1 CONSTRAINT=norm ;;
tlaser) ARCH=tlaser_base LR=0.0005 DROPOUT=0.3 CONSTRAINT=none ;;
ctlaser) ARCH=tlaser_base LR=0.0005 DROPOUT=0.3 CONSTRAINT=norm ;;
*) echo "run.sh: error: $SYSTEM; expected laser_1, laser_5, laser_6, claser_6, tlaser or ctlaser" >&2 && exit 2 ;;
esac
if [ -n "${SMOKE:-}" ]; then
    ARCH=${ARCH%%_*}_tiny
    lxsr prepare --work "$WORK" --data "${TEXT:?}" --lang-pairs "$PAIRS" --vocab-size 200 --valid-size 20 --test-size 20
else
    lxsr prepare preprocess/europarl-five-languages.yaml
fi

# on a GPU add --fp16 or --bf16
fairseq-train "$WORK/data-bin" --user-dir fairseq_lxsr \
    --task xling_translation --pivots en,es --max-positions 750 --arch "$ARCH" --dropout "$DROPOUT" \
    --criterion xling_translation_loss --label-smoothing 0.1 --constraint "$CONSTRAINT" \
    --translation-weight 0.5 --constraint-weight 0.25 --negative-weight 0.5 --constraint-margin 0.5 --negatives 20 \
    --optimizer adam --adam-betas '(0.9, 0.98)' --lr "$LR" --lr-scheduler inverse_sqrt --warmup-updates "$WARMUP" \
    --weight-decay 0.0001 --max-tokens "$MAX_TOKENS" --update-freq "$UPDATE_FREQ" --max-epoch "$EPOCHS" \
    --cpu-precision auto --seed "${SEED:-1}" --save-dir "$WORK/$SYSTEM" --no-epoch-checkpoints \
    --log-format simple --log-interval 100

lxsr export-model --checkpoint "$WORK/$SYSTEM/checkpoint_best.pt" --output "$WORK/$SYSTEM/model"
rm -f "$WORK/$SYSTEM/xsr.jsonl"
for pair in de-en en-es fr-en it-en; do
    lxsr eval xsr --model "$WORK/$SYSTEM/model" --data "$WORK/corpus/$pair/test" --lang-pairs "$pair" \
        --output "$WORK/$SYSTEM/xsr.jsonl"
done
