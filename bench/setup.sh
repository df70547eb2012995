# Sourced by bench/run, tests/run and .ci/run: finds out what is missing, says so, and installs it.
# Packages of Debian 12 and Ubuntu 24.04. On other systems the same things are needed under other names.

build_packages="g++ cmake ninja-build pkg-config libopenblas-openmp-dev libdnnl-dev libbenchmark-dev libcli11-dev libfmt-dev libre2-dev nlohmann-json3-dev zlib1g-dev libgtest-dev"
test_packages="python3 python3-jsonschema python3-nbclient python3-ipykernel python3-matplotlib codespell openmpi-bin libopenmpi-dev iproute2"

say() { printf '%s\n' "$*" >&2 || true; } # where that cannot be written, the exit code still tells
die() {
  say "$(basename "$(dirname "$0")")/$(basename "$0"): $1"
  exit "${2:-1}"
}

missing_packages() {
  for package in "$@"; do
    case "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" in
      installed) ;;
      *) printf '%s ' "$package" ;;
    esac
  done
}

# set_up install|list PACKAGE...   Ends the script after listing.
set_up() {
  mode=$1
  shift
  if ! command -v dpkg-query >/dev/null; then
    say "no dpkg here; assuming that these, or what your system calls them, are installed: $*"
    [ "$mode" = install ] || exit 0
    return 0
  fi
  missing=$(missing_packages "$@")
  if [ -z "$missing" ]; then
    [ "$mode" = install ] || { echo "nothing is missing"; exit 0; }
    return 0
  fi
  if [ "$mode" = list ]; then
    echo "missing: $missing"
    exit 0
  fi
  sudo=
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "these packages are missing, and installing them needs root: $missing"
    sudo=sudo
  fi
  say "installing: $missing"
  export DEBIAN_FRONTEND=noninteractive
  # Two tries: package mirrors have bad moments.
  # shellcheck disable=SC2086
  for try in 1 2; do
    if $sudo apt-get update -qq >&2 &&
      $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >&2; then
      return 0
    fi
    [ "$try" = 2 ] || { say "trying again"; sleep 5; }
  done
  die "could not install: $missing"
}

# Puts the CUDA toolkit on the path when it is installed; fails when there is none.
have_nvcc() {
  if ! command -v nvcc >/dev/null && [ -x /usr/local/cuda/bin/nvcc ]; then
    PATH=$PATH:/usr/local/cuda/bin
  fi
  command -v nvcc >/dev/null
}

# Puts cuobjdump, and nvdisasm, which it calls, on the path: the toolkit's, or, where nvcc was installed without them, those of
# NVIDIA's packages on PyPI. They read what older versions of nvcc wrote, too.
have_cuobjdump() {
  have_nvcc || return
  PATH=$PATH:$(dirname "$(readlink -f "$(command -v nvcc)")"):$PWD/build/cuobjdump/nvidia/cu13/bin
  command -v cuobjdump >/dev/null && command -v nvdisasm >/dev/null && return
  say "installing cuobjdump into build/cuobjdump"
  python3 -m pip install --quiet --root-user-action=ignore --no-deps --upgrade --target build/cuobjdump \
    nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37 >&2
}

# Puts tensorboardX, which writes what TensorBoard reads, and what it needs, into build/tensorboard, unless Python has it.
have_tensorboard_writer() {
  PYTHONPATH=build/tensorboard python3 -c "import tensorboardX" 2>/dev/null && return
  say "installing tensorboardX into build/tensorboard"
  python3 -m pip install --quiet --root-user-action=ignore --only-binary :all: --upgrade --target build/tensorboard \
    tensorboardX==2.6.5 >&2
}

# newer_than FILE [OTHER...]: prints what of bench/fit's sources, and of other files and folders, is newer than FILE, which was made of
# them: its program, a wheel, or the page. Called at the root.
newer_than() {
  local made=$1
  shift
  find bench/fitting common/*.h common/plan common/memory cmake -newer "$made" \( -name '*.h' -o -name '*.cpp' -o -name '*.inc' -o -name '*.cmake' \) -print -quit
  [ $# = 0 ] || find "$@" -type f -newer "$made" -print -quit
}

have_gpu() {
  command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU'
}

# one_build_at_a_time LOG: from here to build_is_done nobody else builds below build/, and LOG, which is there, is empty. Ends the script
# where this user may not write there.
one_build_at_a_time() {
  if ! { mkdir -p build && exec 8>>build/.lock && : >"$1"; } 2>/dev/null; then
    die "cannot write $PWD/build: this checkout is another user's; clone it, and run your clone's" 2
  fi
  flock -n 8 || { say "waiting for another build to end" && flock 8; }
}
build_is_done() { exec 8>&-; }
