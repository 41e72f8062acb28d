#!/usr/bin/env bash
# LASER, cLASER, T-LASER and cT-LASER after Li and Mak 2020: five languages of Europarl, translated into English and Spanish.
#
#   bash examples/europarl_laser/run.sh SYSTEM [option]  laser_1, laser_5, laser_6, claser_6, tlaser or ctlaser, or one of
#                                                        them as in the authors' code, for example ctlaser_released; the text
#                                                        is prepared first (preprocess/europarl-five-languages.yaml)
#   MLDOC=mldoc bash ...                                 export the best epoch on the development sets of MLDoc and score it
#                                                        on the test sets; without it, the epoch with the lowest validation loss
#   SMOKE=1 TEXT='text/{pair}' bash ...                  the same commands with a tiny model and few updates, to check that
#                                                        they run
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -d .venv ] && export PATH="$PWD/.venv/bin:$PATH"

SYSTEM=${1:?usage: run.sh laser_1|laser_5|laser_6|claser_6|tlaser|ctlaser [option of fairseq-train ...]}
shift
# This refuses an unknown recipe.
lxsr train . --recipe "$SYSTEM" --print > /dev/null
# The folder of the YAML file.
WORK=work/europarl
[ -n "${SMOKE:-}" ] && WORK=${SMOKE_WORK:-work/europarl-smoke}
PAIRS=de-en,de-es,en-es,fr-en,fr-es,it-en,it-es
# All translate into English or Spanish.
DIRECTIONS=de-en,de-es,en-es,es-en,fr-en,fr-es,it-en,it-es

if [ -n "${SMOKE:-}" ]; then
    lxsr prepare --work "$WORK" --data "${TEXT:?}" --lang-pairs "$PAIRS" --vocab-size 200 --valid-size 20 --test-size 20
    ARCH=laser_tiny && [[ $SYSTEM = *tlaser* ]] && ARCH=tlaser_tiny
    set -- --arch "$ARCH" --max-tokens 500 --update-freq 1 --max-epoch 1 --warmup-updates 20 "$@"
else
    lxsr prepare preprocess/europarl-five-languages.yaml
fi

# On a GPU, add --fp16 or --amp; if 16,000 tokens do not fit into its memory, --max-tokens 8000 --update-freq 16.
lxsr train "$WORK/data-bin" --recipe "$SYSTEM" --lang-pairs "$DIRECTIONS" --save-dir "$WORK/$SYSTEM" "$@"

LANGS=${LANGS:-de,en,es,fr,it}
# T-LASER of the paper reads "only the first 750 tokens" of a document, and LASER reads all of it.
ON_LONG=split-mean && [[ $SYSTEM = *tlaser* ]] && ON_LONG=cut
if [ -n "${MLDOC:-}" ]; then
    python examples/europarl_laser/choose.py --checkpoints "$WORK/$SYSTEM" --data "$MLDOC" --langs "$LANGS" \
        --on-long "$ON_LONG" --output "$WORK/$SYSTEM/model"
    rm -f "$WORK/$SYSTEM/mldoc.jsonl"
    lxsr eval mldoc --model "$WORK/$SYSTEM/model" --data "$MLDOC" --langs "$LANGS" --on-long "$ON_LONG" \
        --output "$WORK/$SYSTEM/mldoc.jsonl"
    lxsr compare "$WORK/$SYSTEM/mldoc.jsonl" --published
else
    lxsr export folder --checkpoint "$WORK/$SYSTEM/checkpoint_best.pt" --output "$WORK/$SYSTEM/model"
fi
rm -f "$WORK/$SYSTEM/xsr.jsonl"
for pair in de-en en-es fr-en it-en; do
    lxsr eval xsr --model "$WORK/$SYSTEM/model" --data "$WORK/corpus/$pair/test" --lang-pairs "$pair" \
        --output "$WORK/$SYSTEM/xsr.jsonl"
done
