# A server of embeddings and of searches, without a compiler, pip and root:
#   docker build -f containers/serve.Dockerfile -t lxsr-serve .
FROM debian:trixie-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends python3-venv
WORKDIR /source
COPY . .
# Bytecode would add 31 MB, and save about two seconds at the start.
RUN python3 -m venv --without-pip /opt/lxsr \
    && python3 -m venv /pip \
    && /pip/bin/pip --python /opt/lxsr/bin/python install --no-cache-dir --no-compile -c constraints.txt ".[serve]"

FROM debian:trixie-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
    && useradd --uid 10001 --no-create-home lxsr
COPY --from=build /opt/lxsr /opt/lxsr
ENV PATH=/opt/lxsr/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER lxsr
# models and indexes, mounted by whoever starts it
WORKDIR /data
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["lxsr", "serve", "--host", "0.0.0.0"]
CMD ["--model", "lxsr-static"]
