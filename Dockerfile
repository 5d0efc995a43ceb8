# An image with pipewright on Debian's Open MPI and the CPU LibTorch that it was built with:
#
#     docker build --build-arg PIP_ARGS="--extra-index-url URL" -t pipewright .
#     docker run --rm --shm-size 1g --user "$(id -u):$(id -g)" -v "$PWD:/work" pipewright \
#         -n 2 train model.pkg job.json
#
# URL is that of PyTorch's CPU builds: a package with a CUDA LibTorch cannot be made. Building takes
# about as long as `make programs`. --shm-size: ranks exchange messages through /dev/shm.
# `--entrypoint pipewright` starts the compiler instead.
FROM debian:12 AS build
# The Makefile installs what the build needs.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates dpkg-dev file make python3 \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
ARG PIP_ARGS=
RUN make deb PIP_ARGS="$PIP_ARGS"

FROM debian:12
COPY --from=build /src/build/pipewright_*.deb /tmp/
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends /tmp/pipewright_*.deb \
 && rm -rf /var/lib/apt/lists/* /tmp/pipewright_*.deb
USER 1000:1000
ENV HOME=/tmp
WORKDIR /work
ENTRYPOINT ["pipewright-run"]
