#!/usr/bin/env bash
# Programs outside Python that some tests use. Installed with apt-get when this runs as root;
# otherwise it says which tests will be skipped. Says nothing when all are there.
set -euo pipefail

say() { printf '%s\n' "$@" >&2; } # one line an argument

# package | commands, or patterns of files, where it is installed | what is left out without it
table() {
  cat <<'END'
git | git | the tests of provenance (commit, dirty tree)
postgresql | initdb /usr/lib/postgresql/*/bin/initdb | the tests marked 'postgres'
chromium | chromium chromium-browser | the tests marked 'browser'
shellcheck | shellcheck | the check of the shell scripts
slurm-wlm | /usr/sbin/slurmctld | the tests on a real Slurm
slurmdbd | /usr/sbin/slurmdbd | the tests on a real Slurm
munge | /usr/sbin/munged | the tests on a real Slurm
mariadb-server | /usr/sbin/mariadbd | the tests on a real Slurm
gridengine-master | /usr/lib/gridengine/sge_qmaster | the tests on a real Grid Engine
gridengine-exec | /usr/lib/gridengine/sge_execd | the tests on a real Grid Engine
gridengine-client | /usr/lib/gridengine/qsub | the tests on a real Grid Engine
charliecloud | ch-run | the tests in containers of Charliecloud
apptainer | apptainer | the tests in containers of Apptainer
skopeo | skopeo | the test of an image in a registry
docker-registry | docker-registry | the test of an image in a registry
openmpi-bin | mpirun | the tests of ranks started by mpirun
openssh-server | /usr/sbin/sshd | the tests of login nodes
openssh-client | ssh | the tests of login nodes
iproute2 | ip | the tests on several hosts, and of Grid Engine
systemd | systemd-analyze | the check of the unit of deploy/systemd
gcc | gcc | the tests of a training of ten days, and of two clients of an NFS server
libc6-dev | /usr/include/stdio.h | the tests of a training of ten days, and of two clients of an NFS server
g++ | c++ | the test of a recipe that compiles its own code
ninja-build | ninja | the test of a recipe that compiles its own code
tmux | tmux | the test of detached runs
sudo | sudo | the tests of several users on one Slurm
user-mode-linux | linux.uml | the tests of two clients of an NFS server
nfs-kernel-server | /usr/sbin/rpc.nfsd | the tests of two clients of an NFS server
nfs-common | /sbin/mount.nfs4 | the tests of two clients of an NFS server
kmod | /sbin/modprobe | the tests of two clients of an NFS server
python3-swift | /usr/lib/python3/dist-packages/swift | the tests of S3 on OpenStack Swift
glusterfs-server | /usr/sbin/glusterd | the test of a run on GlusterFS
glusterfs-client | /usr/sbin/glusterfs | the test of a run on GlusterFS
lmod | /usr/share/lmod/lmod /usr/share/modules/init | the test of environment modules in ranks
END
}

is_there() { # COMMAND or pattern of a file...
  local each
  for each in "$@"; do
    if command -v "$each" >/dev/null || compgen -G "$each" >/dev/null; then return; fi
  done
  return 1
}

missing() { # prints lines of the table
  local package shows left_out
  local -a any
  while IFS='|' read -r package shows left_out; do
    read -ra any <<<"$shows" # no expansion of patterns here
    is_there "${any[@]}" || printf '%s|%s\n' "${package// /}" "$left_out"
  done < <(table)
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

apt_install() { # PACKAGE...
  local packages=" $* "
  apt-get update -qq || return
  if [[ $packages == *" apptainer "* && -z $(apt-cache madison apptainer) ]]; then
    packages="${packages/ apptainer / } patchelf squashfs-tools squashfuse libseccomp2 libsqlite3-0"
  fi
  # shellcheck disable=SC2086 # one word a package
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages &&
    { command -v apptainer || "$(dirname "$0")/real/apptainer.sh"; } # Debian 12 has none
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
  local rows row
  mapfile -t rows < <(missing)
  ((${#rows[@]})) || return 0
  if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    install "${rows[@]%%|*}"
  else
    say "Not everything that the tests can use is installed. As root:" \
      "  apt-get install ${rows[*]%%|*}"
  fi
  mapfile -t rows < <(missing)
  for row in "${rows[@]}"; do
    say "  without ${row%%|*} is left out:${row#*|}"
  done
}

main
