#!/usr/bin/env bash
# Table 10 of Mao et al. 2021: run.sh with 12.5, 25, 50 and 100 % of the pairs, in $WORK/every-8 to every-1.
# Set EUROPARL and MLDOC, so that all models are measured on the same text.
#   EUROPARL='text/Europarl-v8.{pair}' MLDOC=mldoc bash examples/paracrawl/shares.sh fr PREFIX [option of fairseq-train ...]
set -euo pipefail
cd "$(dirname "$0")/../.."

USAGE="usage: shares.sh fr|de|es|it PREFIX [option of fairseq-train ...]"
TGT=${1:?$USAGE}
PREFIX=${2:?$USAGE}
shift 2
WORK=${WORK:-work/paracrawl-en-$TGT}

for nth in 8 4 2 1; do
    share=$WORK/every-$nth
    mkdir -p "$share"
    for language in en "$TGT"; do
        text=$PREFIX.$language
        [ -e "$text" ] || text=$text.gz
        gzip -cdf "$text" | awk "NR % $nth == 0" > "$share/text.$language"
    done
    WORK=$share bash examples/paracrawl/run.sh "$TGT" "$share/text" "$@"
done
