# A server of embeddings and of searches, without a compiler, pip and root:
#   docker build -f containers/serve.Dockerfile -t lxsr-serve .
ARG BASE=debian:trixie-slim
FROM ${BASE} AS build
RUN apt-get update && apt-get install --yes --no-install-recommends python3-venv
WORKDIR /source
COPY . .
# Bytecode would add 31 MB, and save about two seconds at the start.
RUN python3 -m venv --without-pip /opt/lxsr \
    && python3 -m venv /pip \
    && /pip/bin/pip install --no-cache-dir --require-hashes -r locks/build.txt \
    && /pip/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheel . \
    && /pip/bin/pip --python /opt/lxsr/bin/python install --no-cache-dir --no-compile --require-hashes -r locks/serve.txt \
    && /pip/bin/pip --python /opt/lxsr/bin/python install --no-compile --no-deps --no-index /wheel/*.whl

FROM ${BASE}
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
    && useradd --uid 10001 --no-create-home lxsr
COPY --from=build /opt/lxsr /opt/lxsr
COPY containers/health.py /opt/lxsr/health.py
ENV PATH=/opt/lxsr/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER lxsr
# models and indexes, mounted by whoever starts it
WORKDIR /data
EXPOSE 8000
# Without LXSR_API_KEY, the server refuses to start, because -p opens it to other machines.
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s CMD ["python3", "/opt/lxsr/health.py"]
ENTRYPOINT ["lxsr", "serve", "--host", "0.0.0.0"]
CMD ["--model", "lxsr-static"]
