#!/usr/bin/env bash
# Try the package on several Pythons: its wheel, in an environment of its own that uv makes, with all extras but train.
#
#   bash tools/try_pythons.sh FOLDER python3.11 python3.14           encode, search, mine, measure, prepare, serve, export
#   TRAIN=1 bash tools/try_pythons.sh FOLDER python3.12 python3.13   train three updates, too
#
# FOLDER keeps the environments and a log of each; the status is 1 where one failed, or has other vectors than the first.
# UV=path where uv is not on the PATH, PORT=8765 for the server, UV_FIND_LINKS=folder of wheels, such as torch for the CPU.
set -euo pipefail
[ $# -ge 2 ] || { sed -n 's/^# \{0,1\}//; 2,5p' "$0" >&2; exit 2; }
uv=${UV:-uv}
source=$(cd "$(dirname "$0")/.." && pwd)
export PORT=${PORT:-8765}
extras=torch,faiss,st,onnx,prepare,chinese,documents,zst,parquet,mteb,ray,report,serve,completion
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift

install() { # HOME EXTRAS
    "$uv" pip install -q --python "$1" -c "$source/constraints.txt" "fairseq-lxsr[$2] @ file://$wheel"
}

encode() { # all that needs no fairseq, in the current folder
    python -W error::SyntaxWarning -m compileall -q -f "$(lxsr user-dir)"
    python - <<- 'END'
		from pathlib import Path
		import gzip, fairseq_lxsr
		rows = gzip.open(Path(fairseq_lxsr.__file__).with_name("preparation") / "demo.en-fr.tsv.gz", "rt", encoding="utf-8")
		pairs = [next(rows).rstrip("\n").split("\t")[:2] for _ in range(600)]
		for number, name in enumerate(("text.en", "text.fr")):
		    Path(name).write_text("".join(pair[number] + "\n" for pair in pairs), encoding="utf-8")
		encoder = fairseq_lxsr.SentenceEncoder.from_pretrained("lxsr-static")
		assert encoder.similarity(encoder.encode("Where is the station?"), encoder.encode("Où est la gare ?")) > 0.9
	END
    FORCE_COLOR=1 lxsr embed --help > help.txt
    if grep -q x1b help.txt; then echo "help has control characters"; return 1; fi
    lxsr embed --model lxsr-static --input text.en --output vectors.npy
    lxsr index --model lxsr-static --input text.fr --output index
    lxsr search --index index --k 1 "Where is the station?"
    lxsr mine --model lxsr-static --source text.en --target text.fr --output mined.tsv
    lxsr score --model lxsr-static --source text.en --target text.fr --output scored.tsv
    lxsr eval xsr --model lxsr-static --source text.en --target text.fr --output scores.jsonl
    lxsr prepare --work work --data text --lang-pairs en-fr --vocab-size 300 --valid-size 20 --test-size 20
    lxsr verify work/data-bin
    lxsr export onnx --model lxsr-static --output onnx
    lxsr export sentence-transformers --model lxsr-static --output st
    lxsr export web --model lxsr-static --input text.en --output web
    serve
}

serve() { # asked once, in a minute at most
    lxsr serve --model lxsr-static --port "$PORT" & local server=$!
    python - "http://127.0.0.1:$PORT/v1/embeddings" <<- 'END' || { kill $server; return 1; }
		import json, sys, time, urllib.error, urllib.request
		asked = urllib.request.Request(sys.argv[1], b'{"input": "a dog", "model": "lxsr-static"}', {"Content-Type": "application/json"})
		for _ in range(60):
		    try:
		        answer = json.load(urllib.request.urlopen(asked, timeout=60))
		        break
		    except urllib.error.HTTPError:
		        raise
		    except OSError: # it is not there yet
		        time.sleep(1)
		assert len(answer["data"][0]["embedding"]) == 256
	END
    kill $server
    wait $server || true
}

train() { # HOME
    install "$1" train
    READTHEDOCS=1 "$uv" pip install -q --python "$1" --no-deps -r "$(lxsr user-dir)/recipes/fairseq.txt"
    lxsr train work/data-bin --recipe best --max-update 3 --save-dir checkpoints --num-workers 0
    lxsr export folder --checkpoint checkpoints/checkpoint_best.pt --output model
    lxsr embed --model model --input text.en --output trained.npy
}

try() { # PYTHON HOME
    "$uv" venv -q --clear --python "$1" "$2"
    install "$2" "$extras"
    PATH=$2/bin:$PATH
    rm -rf "$2/try"
    mkdir "$2/try"
    cd "$2/try"
    encode
    if [ -n "${TRAIN:-}" ]; then train "$2"; fi
}

rm -rf "$folder/wheel"
"$uv" build -q --wheel -o "$folder/wheel" "$source"
wheel=$(ls "$folder"/wheel/*.whl)
failed=0 first=
for python in "$@"; do
    version=$("$python" -c 'import platform; print(platform.python_version())')
    home=$folder/$version start=$SECONDS
    said=works
    try "$python" "$home" > "$home.log" 2>&1 < /dev/null & # where `set -e` holds, as it does not after `if`
    wait $! || { said="FAILED, the end of $home.log:" failed=1; }
    echo "Python $version: $said${TRAIN:+ (with training)} $((SECONDS - start)) s"
    if [ "$said" != works ]; then tail -n 4 "$home.log" | cut -c 1-200; continue; fi
    vectors=$(sha256sum < "$home/try/vectors.npy" | cut -c 1-12)
    first=${first:-$vectors}
    if [ "$vectors" != "$first" ]; then echo "Python $version: other vectors, $vectors and not $first"; failed=1; fi
done
exit $failed
