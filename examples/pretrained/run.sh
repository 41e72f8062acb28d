#!/usr/bin/env bash
# One small model of 39 languages: text, word pieces, teacher, training, model folder, scores, card.
#
#   DATA=DIR bash examples/pretrained/run.sh [option of fairseq-train ...]
#                        DIR has the text that sources.json names, and evaluation text in DIR/eval; WORDS=DIR has words/,
#                        forms/, phrases/, questions/, monolingual/, everyday/ and laws/
#   SMOKE=1 DATA=DIR ... the same commands with few pieces and updates and no teacher, to check that they run
# After an interruption, the same command continues where it stopped.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -d .venv ] && export PATH="$PWD/.venv/bin:$PATH"

DATA=${DATA:?DATA=DIR, the folder of the text}
WORDS=${WORDS:-$DATA}
WORK=${WORK:-work/static}
SOURCES=${SOURCES:-examples/pretrained/sources.json}
OTHERS=ar,bg,ca,cs,da,de,el,es,et,fa,fi,fr,he,hi,hr,hu,id,is,it,ja,ko,lt,lv,nb,nl,pl,pt,ro,ru,sk,sl,sr,sv,th,tr,uk,vi,zh
PAIRS=${PAIRS:-en-${OTHERS//,/,en-}}
PUD=${PUD:-en-ar,en-cs,en-de,en-es,en-fi,en-fr,en-hi,en-id,en-it,en-ko,en-pl,en-pt,en-ru,en-sv,en-th,en-tr,en-zh,fr-de,es-it,fr-zh}
TATOEBA=${TATOEBA-ar:ara bg:bul ca:cat cs:ces da:dan de:deu el:ell es:spa et:est fa:pes fi:fin fr:fra he:heb hi:hin hr:hrv hu:hun \
    id:ind is:isl it:ita ja:jpn ko:kor lt:lit lv:lvs nb:nob nl:nld pl:pol pt:por ro:ron ru:rus sk:slk sl:slv sr:srp sv:swe th:tha \
    tr:tur uk:ukr vi:vie zh:cmn}
# Languages that the teacher reads; empty: no teacher.
TAUGHT=${TAUGHT-ar,de,en,es,fr,it,ja,ko,nl,pl,pt,ru,th,tr,zh}
# Languages that are trained once more by themselves.
WEAK=${WEAK-ar,ca,cs,el,et,fa,fi,he,hi,hr,hu,id,is,ko,lt,lv,ro,sk,sl,sr,uk,vi}
# Languages in which the fewest sentences or questions find their translation or paragraph.
WEAKEST=${WEAKEST-ar,cs,el,et,fa,he,hi,hr,is,ja,ko,lt,lv,sk,sl,uk}
# Languages whose sentences without a translation that teacher embeds, too: those that gain by it.
UNTRANSLATED=${UNTRANSLATED-ar,et,fa,he,hi,lt,lv,uk}
# A model of sentence-transformers that reads all languages, and its text before a query; empty: none.
WORD_TEACHER=${WORD_TEACHER-intfloat/multilingual-e5-small}
PREFIX=${PREFIX-query: }
MODEL=$WORK/lxsr-static

VOCAB=179000 HELD_OUT=100 WIDTH=256 SMALLER=64,128 SEEDS="1 2" AGAIN="0 10" UPDATES= BATCH= LIMIT=2500 WEAK_LIMIT=12000
PIECES=177100 NEW_PIECES=6000 MANY=6000 WEAK_MANY=20000 UNMARKED=25000 REFINED=2500
if [ -n "${SMOKE:-}" ]; then
    VOCAB=70 HELD_OUT=40 WIDTH=16 SMALLER=8 SEEDS=1 AGAIN=0 UPDATES=10 BATCH=64 TAUGHT= LIMIT=200 WEAK_LIMIT=300
    PIECES=90 NEW_PIECES=20 MANY=300 WEAK_MANY=300 UNMARKED=20 REFINED=10 WORD_TEACHER=
fi

step() { printf '\n== %s\n' "$*"; }

step "1/10 Text: collect, clean and split it, learn word pieces, binarise"
# This runs every time, because DATA and SOURCES may have changed; `lxsr prepare` does nothing if the text is the same. Word
# pieces, the teacher's embeddings and checkpoints stay: remove subwords, teacher and checkpoints of $WORK if WORDS has changed.
python examples/pretrained/collect.py --data "$DATA" "$WORDS" --sources "$SOURCES" --exclude "$DATA"/eval/*.txt.gz \
    --output "$WORK/text"
# The names as YAML reads them: it would read \ud83d\ude00 as two letters.
quoted() { python -c 'import json, sys; print(*(json.dumps(name, ensure_ascii=False) for name in sys.argv[1:]), sep=", ")' "$@"; }
cat "$WORK/text/pairs.yaml" - > "$WORK/prepare.yaml" <<END
work: $(quoted "$WORK")
cleaning: {filters: {identical: }, exclude: [$(quoted "$DATA"/eval/*.txt.gz)]}
subwords: {vocab_size: $VOCAB, model_type: unigram, character_coverage: 0.99995, simplify_chinese: true}
valid_size: $HELD_OUT
test_size: $HELD_OUT
END
# Word pieces are also learnt from the phrases and the teacher's vocabulary; those of the text alone have a stage.json.
if [ -n "$TAUGHT" ] && { [ ! -d "$WORK/subwords" ] || [ -f "$WORK/subwords/stage.json" ]; }; then
    lxsr prepare "$WORK/prepare.yaml" --until clean
    rm -rf "$WORK/subwords"
    python examples/pretrained/pieces.py --corpus "$WORK/corpus" --words "$WORDS" --vocab-size "$VOCAB" \
        --output "$WORK/subwords"
fi
lxsr prepare "$WORK/prepare.yaml"

step "2/10 Teacher: its embeddings of words and sentences"
if [ -n "$TAUGHT" ]; then
    [ -d "$WORK/teacher" ] || python examples/pretrained/teacher.py --text "$WORK/text" --languages "$TAUGHT" \
        --words "$WORDS" --exclude "$DATA"/eval/*.txt.gz --output "$WORK/teacher.part"
    [ -d "$WORK/teacher" ] || mv "$WORK/teacher.part" "$WORK/teacher"
fi

step "3/10 Training in three phases: each continues from the one before"
phase() { # NAME FROM UPDATES BATCH LEARNING_RATE TEMPERATURE TEACHER_WEIGHT [option ...]
    local run=$WORK/checkpoints/$seed updates=${UPDATES:-$3} batch=${BATCH:-$4} teacher=() from=()
    [ -z "$TAUGHT" ] || teacher=(--teacher-text "$WORK/teacher" --teacher-text-weight "$7")
    [ "$2" = nothing ] || from=(--finetune-from-model "$run/$2/checkpoint_last.pt")
    lxsr train "$WORK/data-bin" --recipe best --lang-pairs "$PAIRS" --order-coefficients 0 --hard-negatives none \
        --encoder-embed-dim "$WIDTH" --batch-size "$batch" --max-update "$updates" --total-num-update "$updates" \
        --warmup-updates "$((updates / 10))" --lr "$5" --align-temperature "$6" ${teacher[@]+"${teacher[@]}"} \
        --sampling-temperature 2 --source-temperature 5 --disable-validation --rare-subword-dropout 0 --seed "$((seed + again))" \
        --save-interval-updates 500 --keep-interval-updates 1 ${from[@]+"${from[@]}"} --save-dir "$run/$1" "${@:8}"
}
phases=()
for seed in $SEEDS; do
    again=0
    phase 1 nothing 4000 2048 0.02 0.1 1 "$@"
    # The same phases with other random draws.
    for again in $AGAIN; do
        phase "2.$again" 1 3500 2048 0.02 0.1 3 --matryoshka "$SMALLER" "$@"
        phase "3.$again" "2.$again" 1500 2048 0.012 0.05 2 --matryoshka "$SMALLER" --sampling-temperature 5 "$@"
        # The last phase counts twice.
        for name in 2 3 3; do phases+=("$WORK/checkpoints/$seed/$name.$again/checkpoint_last.pt"); done
    done
done
mean=$WORK/checkpoints/mean/checkpoint_last.pt white=$WORK/checkpoints/white/checkpoint_last.pt
python examples/pretrained/average.py "${phases[@]}" --rotate --output "$mean"
python examples/pretrained/whiten.py "$mean" --corpus "$WORK/corpus" --output "$white"

step "4/10 Letters: the same text written differently gets the same word pieces"
rm -rf "$WORK/unfolded" "$WORK/folded"
lxsr export folder --checkpoint "$white" --output "$WORK/unfolded" --dtype float32
python examples/pretrained/fold.py "$WORK/unfolded" --output "$WORK/folded"

step "5/10 All languages once more, with the new pieces"
again() { # NAME FROM UPDATES TEMPERATURE SAMPLE_OPTION ...: trains the model folder $WORK/NAME
    local updates=${UPDATES:-$3}
    python examples/pretrained/sample.py --text "$WORK/text" --weak "$WEAK" --weak-limit "$WEAK_LIMIT" "${@:5}" \
        --output "$WORK/$1.text"
    cat "$WORK/$1.text/pairs.yaml" - > "$WORK/$1.yaml" <<END
work: $(quoted "$WORK/$1.prepared")
cleaning: {filters: {identical: }, exclude: [$(quoted "$DATA"/eval/*.txt.gz)]}
subwords: {from_model: $(quoted "$WORK/$2"), new_pieces: 0}
valid_size: 20
test_size: 20
END
    lxsr prepare "$WORK/$1.yaml"
    lxsr train "$WORK/$1.prepared/data-bin" --from "$WORK/$2" --recipe best --order-coefficients 0 --hard-negatives none \
        --encoder-embed-dim "$WIDTH" --batch-size "${BATCH:-2048}" --max-update "$updates" --total-num-update "$updates" \
        --warmup-updates "$((updates / 10))" --lr "${LR:-0.012}" --align-temperature "$4" --matryoshka "$SMALLER" \
        --sampling-temperature 5 --source-temperature 5 --disable-validation --rare-subword-dropout 0 --seed 1 \
        --save-interval-updates 100 --keep-interval-updates 1 --save-dir "$WORK/checkpoints/$1"
    rm -rf "${WORK:?}/$1"
    lxsr export folder --checkpoint "$WORK/checkpoints/$1/checkpoint_last.pt" --output "$WORK/$1" --dtype float32
}
again all folded 480 0.05 --limit "$LIMIT"

step "6/10 Weak languages, without and with lists of words"
lists=()
for name in cldr wordnet panlex; do
    if compgen -G "$WORDS/words/$name.*" > /dev/null; then lists+=("$WORDS/words/$name"); fi
done
again weak all 240 0.1
again words all 360 0.1 --words ${lists[@]+"${lists[@]}"}
rm -rf "$WORK/rows"
python examples/pretrained/rows.py "$WORK"/{folded,all,weak,words} --languages "$WEAK" --text "$WORK/text" --output "$WORK/rows"

step "7/10 Word pieces: frequent words come in, those that matter least go"
rm -rf "$WORK/grown"
python examples/pretrained/grow.py "$WORK/rows" --text "$WORK/text" --limit "$NEW_PIECES" --output "$WORK/grown"
more=(--limit "$MANY" --weak "$WEAK,bg,da" --weak-limit "$WEAK_MANY" --words ${lists[@]+"${lists[@]}"})
LR=0.015 again pieces grown 2400 0.05 "${more[@]}"
LR=0.015 again plain grown 2400 0.05 "${more[@]}" --without headings
both=$WORK/checkpoints/both/checkpoint_last.pt
python examples/pretrained/average.py "$WORK"/checkpoints/{pieces,plain}/checkpoint_last.pt --output "$both"
rm -rf "$WORK/both" "$WORK/pruned"
lxsr export folder --checkpoint "$both" --output "$WORK/both" --dtype float32
python examples/pretrained/prune.py "$WORK/both" --before "$WORK/rows" --text "$WORK/text" \
    --sentences "$WORDS"/{monolingual,everyday} --pieces "$PIECES" --output "$WORK/pruned" --dtype float32

step "8/10 A teacher of all languages, words without marks, lengths; four bits a weight"
rm -rf "$WORK/near" "$WORK/unmarked" "$WORK/refined" "$WORK/taught" "$MODEL"
if [ -n "$WORD_TEACHER" ]; then
    python examples/pretrained/neighbours.py "$WORK/pruned" --teacher "$WORD_TEACHER" --prefix "$PREFIX" \
        --vectors "$WORK/words.npz" --output "$WORK/near"
else
    cp -r "$WORK/pruned" "$WORK/near"
fi
python examples/pretrained/unmarked.py "$WORK/near" --text "$WORK/text" --limit "$UNMARKED" --output "$WORK/unmarked"
python examples/pretrained/refine.py "$WORK/unmarked" --text "$WORK/text" --weak "$WEAKEST" --updates "$REFINED" \
    --exclude "$DATA"/eval/*.txt.gz --output "$WORK/refined"
if [ -n "$WORD_TEACHER" ]; then
    python examples/pretrained/sentences.py "$WORK/refined" --text "$WORK/text" --sentences "$WORDS"/{laws,everyday} \
        --teacher "$WORD_TEACHER" --prefix "$PREFIX" --vectors "$WORK/sentences.npz" --languages "$UNTRANSLATED" \
        --exclude "$DATA"/eval/*.txt.gz --output "$WORK/taught"
else
    cp -r "$WORK/refined" "$WORK/taught"
fi
python examples/pretrained/reweigh.py "$WORK/taught" --output "$MODEL" --dtype int4

step "9/10 Scores: is a sentence's nearest neighbour its translation? (percent)"
rm -f "$WORK/scores.jsonl"
score() { lxsr eval "$1" --model "$MODEL" --output "$WORK/scores.jsonl" "${@:2}"; }
# News and encyclopedia.
score xsr --data "$DATA/eval/pud.{lang}" --lang-pairs "$PUD" --metric nn
# Short everyday sentences.
for codes in $TATOEBA; do
    prefix=$DATA/eval/tatoeba-v1.${codes#*:}-eng
    score tatoeba --source "$prefix.${codes#*:}.txt.gz" --target "$prefix.eng.txt.gz" --lang-pairs "${codes%:*}-en"
done

step "10/10 Card"
lxsr export card --model "$MODEL" --scores "$WORK/scores.jsonl" --sources "$SOURCES"
tar -czf "$WORK/lxsr-static.tar.gz" -C "$WORK" lxsr-static
sha256sum "$WORK/lxsr-static.tar.gz"
