# Sourced by quickstart, test and check: finds a Python, makes .venv, installs what is asked for.
# All it says goes to stderr, so that stdout stays the answer. POSIX sh; on Windows, Git's bash.

CDPATH='' cd -- "$(dirname -- "$0")/.." || exit

say() {
  printf '==> %s\n' "$*" >&2
}

fail() {
  printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
  exit 1
}

# Prints the version of Python $1; its status says whether llmrun runs on it.
python_version() {
  "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3]); sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

# Sets base to the first Python of 3.11 or newer: $PYTHON, or else one of the usual names.
find_python() {
  if [ -n "${PYTHON:-}" ]; then
    set -- "$PYTHON"
  else
    set -- python3 python python3.14 python3.13 python3.12 python3.11 py
  fi
  seen=''
  for base in "$@"; do
    if version=$(python_version "$base"); then
      return
    fi
    if [ -n "$version" ]; then
      seen="$seen${seen:+, }$base $version"
    fi
  done
  fail "Python 3.11 or newer is needed; found ${seen:-none}" \
    "install one from https://www.python.org/downloads/, or name one: PYTHON=/path/to/python3.12 $0"
}

# Windows keeps programs in .venv/Scripts, every other platform in .venv/bin.
set_bin() {
  bin=.venv/bin
  if [ -d .venv/Scripts ]; then
    bin=.venv/Scripts
  fi
  python=$bin/python
}

make_venv() {
  find_python
  if ! "$base" -c 'import ensurepip, venv' 2>/dev/null; then
    fail "$base $version cannot make virtual environments: its venv module is not complete" \
      "on Debian and Ubuntu: sudo apt install python3-venv"
  fi
  say "making .venv with $base $version"
  "$base" -m venv --clear .venv
  set_bin
}

# prepare [dev]: .venv has llmrun as an editable install, and with dev what checks and tests need.
prepare() {
  set_bin
  if ! version=$(python_version "$python"); then
    if [ -n "$version" ]; then
      fail "the Python in .venv is $version, and llmrun needs 3.11 or newer" "delete .venv and run $0 again"
    fi
    make_venv
  fi
  "$python" scripts/install.py "$@"
}
