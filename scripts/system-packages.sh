#!/usr/bin/env bash
# Programs outside Python that some tests use. Installed with apt-get when this runs as root;
# otherwise it says which tests will be skipped. Says nothing when all are there.
# shellcheck disable=SC2317 # functions are called by name
set -euo pipefail

say() { printf '%s\n' "$@" >&2; } # one line an argument

has_postgresql() {
  command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null
}

has_chromium() { command -v chromium >/dev/null || command -v chromium-browser >/dev/null; }

has_git() { command -v git >/dev/null; }

has_shellcheck() { command -v shellcheck >/dev/null; }

has_slurm-wlm() { [[ -x /usr/sbin/slurmctld && -x /usr/sbin/slurmd ]]; }

has_slurmdbd() { [[ -x /usr/sbin/slurmdbd ]]; }

has_munge() { [[ -x /usr/sbin/munged ]]; }

has_mariadb-server() { [[ -x /usr/sbin/mariadbd ]]; }

has_charliecloud() { command -v ch-run >/dev/null; }

has_apptainer() { command -v apptainer >/dev/null; }

has_skopeo() { command -v skopeo >/dev/null; }

has_docker-registry() { command -v docker-registry >/dev/null; }

has_openmpi-bin() { command -v mpirun >/dev/null; }

has_openssh-server() { [[ -x /usr/sbin/sshd ]]; }

has_openssh-client() { command -v ssh >/dev/null; }

has_systemd() { command -v systemd-analyze >/dev/null; }

has_sudo() { command -v sudo >/dev/null; }

has_iproute2() { command -v ip >/dev/null; }

PACKAGES=(git postgresql chromium shellcheck slurm-wlm slurmdbd munge mariadb-server
  charliecloud apptainer skopeo docker-registry openmpi-bin openssh-server openssh-client iproute2 systemd sudo)

missing() {
  local package
  for package in "${PACKAGES[@]}"; do
    "has_$package" || printf '%s\n' "$package"
  done
}

why() { # PACKAGE: what is left out without it
  case $1 in
  git) say "  git: the tests of provenance (commit, dirty tree) are skipped" ;;
  postgresql) say "  postgresql: the tests marked 'postgres' are skipped" ;;
  chromium) say "  chromium: the tests marked 'browser' are skipped" ;;
  slurm-wlm | slurmdbd | munge | mariadb-server)
    say "  $1: the tests on a real Slurm are skipped"
    ;;
  charliecloud | apptainer) say "  $1: its tests on a real Slurm are skipped" ;;
  skopeo | docker-registry) say "  $1: the test of an image in a registry is skipped" ;;
  openmpi-bin) say "  openmpi-bin: the tests of ranks started by mpirun are skipped" ;;
  openssh-server | openssh-client) say "  $1: the tests of login nodes are skipped" ;;
  iproute2) say "  iproute2: the test of a gang on two hosts is skipped" ;;
  sudo) say "  sudo: the tests of several users on one Slurm are skipped" ;;
  systemd) say "  systemd: the unit of deploy/systemd is not checked" ;;
  shellcheck) say "  shellcheck: the shell scripts are not linted" ;;
  esac
}

# Tests start what they need themselves: nothing that is installed here shall serve this machine.
without_services() { # COMMAND...
  local policy=/usr/sbin/policy-rc.d code=0
  if [[ -e $policy ]]; then
    "$@"
    return
  fi
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
  "$@" || code=$?
  rm -f "$policy"
  return "$code"
}

# Debian 12 has no Apptainer.
unpack_apptainer() {
  apt-get install -y -qq --no-install-recommends patchelf squashfs-tools squashfuse libseccomp2 \
    libsqlite3-0 && "$(dirname "$0")/real/apptainer.sh"
}

apt_install() { # PACKAGE...
  local package packages=()
  apt-get update -qq || return
  for package in "$@"; do
    if [[ $package == apptainer && -z $(apt-cache madison apptainer) ]]; then
      unpack_apptainer || return
    else
      packages+=("$package")
    fi
  done
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
}

install() { # PACKAGE...
  local packages=("$@")
  apt-get update -qq
  if [[ " $* " == *" apptainer "* && -z $(apt-cache madison apptainer) ]]; then
    unpack_apptainer || return
    mapfile -t packages < <(printf '%s\n' "$@" | grep -vx apptainer)
    ((${#packages[@]})) || return 0
    set -- "${packages[@]}"
  fi
  apt-get update -qq &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

install() { # PACKAGE...
  local log
  log=$(mktemp)
  say "Installing the Debian packages $* (log: $log)"
  if ! without_services apt_install "$@" >"$log" 2>&1 </dev/null; then
    say "$(tail -n 15 "$log")" "apt-get failed, so:"
    return
  fi
  rm -f "$log"
  if [[ " $* " == *" openssh-server "* && -d /run/systemd/system ]]; then
    systemctl disable --quiet ssh.service ssh.socket 2>/dev/null || true
  fi
}

main() {
  local packages package
  mapfile -t packages < <(missing)
  ((${#packages[@]})) || return 0
  if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    install "${packages[@]}"
  else
    say "Not everything that the tests can use is installed. As root:" \
      "  apt-get install ${packages[*]}"
  fi
  mapfile -t packages < <(missing)
  for package in "${packages[@]}"; do
    why "$package"
  done
}

main
