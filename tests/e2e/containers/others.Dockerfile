# Stands in for HAProxy, Prometheus and Alertmanager where no registry can be reached: Debian's own programs
# under the names and with the folders of the official images.
ARG DEBIAN_IMAGE=debian:bookworm-slim
FROM ${DEBIAN_IMAGE}
# Whatever versions Debian has are good enough to try the options with.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends haproxy prometheus prometheus-alertmanager \
    && rm -rf /var/lib/apt/lists/* \
    && ln -s /usr/bin/prometheus-alertmanager /usr/local/bin/alertmanager \
    && install -d -o 65534 -g 65534 /prometheus /alertmanager
