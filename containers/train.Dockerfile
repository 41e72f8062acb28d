# Training with fairseq on a GPU:
#   docker build -f containers/train.Dockerfile -t lxsr-train .
#   docker run --rm --gpus all --shm-size 2g --user "$(id -u)" -v "$PWD":/work lxsr-train run own --lang-pair en-de --work run
# torch brings CUDA; the base has what the driver of the host is mounted into.
ARG BASE=nvidia/cuda:12.8.1-base-ubuntu24.04
FROM ${BASE}
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
# fairseq is installed as in CONTRIBUTING.md: without its dependencies, and nothing is compiled.
RUN python3 -m venv /opt/lxsr \
    && /opt/lxsr/bin/pip install --no-cache-dir --require-hashes -r locks/train.txt \
    && /opt/lxsr/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
    && READTHEDOCS=1 /opt/lxsr/bin/pip install --no-cache-dir --no-deps --no-build-isolation --require-hashes -r fairseq_lxsr/recipes/fairseq.txt
ENV PATH=/opt/lxsr/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1
WORKDIR /work
ENTRYPOINT ["lxsr"]
CMD ["--help"]
