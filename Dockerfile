# The course on NVIDIA's development image: builds it, and runs bench/run. Not built where it was written, which has neither a
# GPU nor Docker; `bench/run` in it is the same script that runs everywhere else.
#
#   docker build -t oomlab .
#   docker run --rm --gpus device=0 -v "$PWD/build:/oomlab/build" oomlab           every chapter; results stay in build/
#   docker run --rm --gpus device=0 -v "$PWD/build:/oomlab/build" oomlab --quick   whatever follows goes to bench/run
#   docker run --rm -v "$PWD/build:/oomlab/build" oomlab --plan                    without a GPU: the host build
FROM nvidia/cuda:12.9.1-devel-ubuntu24.04
WORKDIR /oomlab
# What bench/setup.sh needs first; the rest it installs itself, by apt.
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates git sudo && rm -rf /var/lib/apt/lists/*
COPY . .
# Packages in the image, so that a run needs no network.
RUN bash -c '. bench/setup.sh && set_up install $build_packages' && rm -rf /var/lib/apt/lists/*
ENTRYPOINT ["bench/run"]
