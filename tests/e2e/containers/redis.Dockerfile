# Stands in for the official Redis image where no registry can be reached: same user, same folder.
ARG DEBIAN_IMAGE=debian:bookworm-slim
FROM ${DEBIAN_IMAGE}
# Whatever version Debian has is good enough to try the options with.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends redis-server \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o 999 -g 999 /data
