# The gateway, and the emulator, as one image. docs/containers.md says how it is run.
#   docker build -t fairgate .
# Pin the base to a digest where builds must repeat: --build-arg PYTHON_IMAGE=python:3.12-slim@sha256:...
ARG PYTHON_IMAGE=python:3.12-slim

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src

# Wheels only, each by its hash: nothing is compiled here and no package runs code of its own. With what `log.traces`
# and batches in buckets need, since there is no pip in the image to add it later.
COPY deploy/requirements-image.lock deploy/requirements-build.lock ./
RUN python -m venv --without-pip /opt/fairgate \
    && python -m pip --python /opt/fairgate/bin/python install --require-hashes --only-binary :all: \
        -r requirements-image.lock \
    && python -m venv --without-pip /opt/build \
    && python -m pip --python /opt/build/bin/python install --require-hashes --only-binary :all: \
        -r requirements-build.lock

COPY pyproject.toml README.md LICENSE ./
COPY gateway gateway
RUN /opt/build/bin/python -m hatchling build -t wheel -d /dist \
    && python -m pip --python /opt/fairgate/bin/python install --no-deps --no-index /dist/*.whl
COPY deploy/healthcheck.py deploy/alert_log.py deploy/sbom.py /opt/fairgate/

FROM ${PYTHON_IMAGE}
ARG REVISION=unknown
LABEL org.opencontainers.image.title="fairgate" \
      org.opencontainers.image.description="The fair, SLA-tiered front door of a self-hosted LLM fleet" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.fairgate.sbom="/opt/fairgate/sbom.cdx.json"

# Slim images come without the standard library's bytecode, and the process below may not write it.
RUN python -m compileall -q /usr/local/lib/python3.*/ -x '/(test|tests|idlelib|lib2to3|turtledemo)/' \
    && python -m pip uninstall --yes --quiet --root-user-action ignore pip \
    && groupadd --gid 10001 fairgate \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent \
        --shell /usr/sbin/nologin fairgate
COPY --from=build /opt/fairgate /opt/fairgate
# What it is made of, and the one folder that a volume gives it to keep things in.
RUN /opt/fairgate/bin/python -I /opt/fairgate/sbom.py > /opt/fairgate/sbom.cdx.json \
    && install -d -o 10001 -g 10001 -m 0750 /var/lib/fairgate

# All interfaces of the container: without keys the gateway refuses that, and says so.
ENV PATH="/opt/fairgate/bin:${PATH}" \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    FAIRGATE_LISTEN__HOST=0.0.0.0
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-IS", "/opt/fairgate/healthcheck.py"]
ENTRYPOINT ["fairgate"]
CMD ["serve"]
