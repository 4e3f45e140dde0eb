# scripts/image builds this with docker, podman or buildah; any image with Python 3.11 to 3.13 and its venv module serves
# as BASE. The tag names one release of Python; a digest could not be checked where this was written: add yours.
ARG BASE=docker.io/library/python:3.13.11-slim-bookworm

FROM ${BASE} AS build
WORKDIR /src
# pip installs from the first venv into the second, which then holds only what runs.
RUN python3 -m venv /tools && python3 -m venv --without-pip /opt/specdec
COPY requirements.lock requirements-dev.lock ./
RUN /tools/bin/pip --python /opt/specdec/bin/python install --no-cache-dir --no-compile --disable-pip-version-check \
        --only-binary :all: --require-hashes -r requirements.lock
# The build backend comes from the lock file too; one that is missing there fails because it has no hash.
RUN awk '/^[a-z]/ { wanted = /^(hatchling|packaging|pathspec|pluggy|tomlkit|trove-classifiers)==/ } wanted' \
        requirements-dev.lock > build.lock \
    && /tools/bin/pip install --no-cache-dir --disable-pip-version-check --only-binary :all: --require-hashes \
        -r build.lock
COPY pyproject.toml README.md LICENSE ./
COPY sidecar ./sidecar
COPY specdec_tools ./specdec_tools
COPY alerts ./alerts
COPY docs/fidelity.md ./docs/fidelity.md
# Compiled here, since the root file system is read-only when it runs; the hashes make the result independent of dates.
RUN /tools/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /dist . \
    && /tools/bin/pip --python /opt/specdec/bin/python install --no-cache-dir --no-compile --no-deps --no-index \
        --disable-pip-version-check /dist/*.whl \
    && /opt/specdec/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/specdec/lib

FROM ${BASE}
ARG VERSION=0.0.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="specdec-sidecar" \
      org.opencontainers.image.description="Monitoring sidecar and alerting exporter for vLLM: does speculative decoding pay, and at which temperatures?" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# Nothing is installed at run time. Docker gives new volumes at the two folders the folders' owner: the plug-in's, which
# vLLM mounts, and the socket's.
RUN rm -rf /usr/local/lib/python3.*/site-packages/pip* /usr/local/lib/python3.*/ensurepip /usr/local/bin/pip* \
    && mkdir -p /plugin /run/specdec && chown 65532:65532 /plugin /run/specdec
COPY --from=build /opt/specdec /opt/specdec
ENV PATH=/opt/specdec/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# A number, so that Kubernetes can see that it is not root.
USER 65532:65532
WORKDIR /
# The page and /metrics.
EXPOSE 9911
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=15s CMD ["specdec-sidecar", "healthcheck"]
ENTRYPOINT ["specdec-sidecar"]
CMD ["run"]
